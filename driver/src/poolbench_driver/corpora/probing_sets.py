"""The probing sets that the settings of a run name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from poolbench.errors import CorpusError
from poolbench_corpora.probing import ProbingSet, ProbingSets
from poolbench_driver.config import NO_FOLDER, CorpusSource


class NamesSets(Protocol):
    """Settings with ids or patterns of probing sets, and the corpus that has them."""

    @property
    def sets(self) -> tuple[str, ...]:
        """Return ids, or patterns such as `blimp-*`."""

    @property
    def corpus(self) -> CorpusSource:
        """Return the corpus: planted, real or a folder of definitions."""


def chosen_sets(config: NamesSets) -> tuple[ProbingSets, list[ProbingSet]]:
    """Return the catalogue of a run and the sets that it names; raise UnknownNameError or CorpusError."""
    source = config.corpus.source
    catalogue = ProbingSets(*([] if source in NO_FOLDER else [Path(source)]))
    candidates = catalogue.choose(config.sets) if config.sets else catalogue.all()
    if source not in NO_FOLDER:
        probing_sets = [candidate for candidate in candidates if candidate.folder == Path(source)]
    else:
        probing_sets = [
            candidate for candidate in candidates if (candidate.fidelity == "planted") is (source == "planted")
        ]
    if not probing_sets and config.sets:
        raise CorpusError(
            f"--sets {','.join(config.sets)}: no such set in corpus {source}; name another corpus (--corpus planted, "
            "real or a folder), or sets of this one (poolbench-driver ls probing-sets)"
        )
    return catalogue, probing_sets
