"""The concepts of the planted suite in the object store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from poolbench.concepts import Concept, Neighbours
from poolbench.errors import ConfigError
from poolbench.library import attach
from poolbench.storage.base import ObjectStore
from poolbench_corpora.own import revision_of
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.suites.planted.passages import planted_passages
from poolbench_driver.suites.planted.signals import SIGNALS, TEXTS, concept_id, judged_strategies

#: What the suite measures, and all that it can: another model or corpus would have other answers.
SETTINGS: dict[str, Any] = {
    "model": "planted",
    "concepts": [concept_id(name) for name in TEXTS],
    "strategies": judged_strategies(),
    "layers": sorted({signal.block for signal in SIGNALS}),
    "metrics": ["d1"],
}
#: Settings that may differ from these.
_FREE = ("strategies",)


def register(config: ConceptsConfig, store: ObjectStore) -> None:
    """Put the suite's concepts into the store, where every service finds them; others of their names go.

    Raise ConfigError for a run that measures anything else.
    """
    _require_own(config)
    library = attach(store)
    for name in TEXTS:
        passages = planted_passages(name)
        concept = _concept(name, passages)
        stored_concept = library.find(concept.id)
        if stored_concept is not None and stored_concept.corpus == concept.corpus:
            continue
        if stored_concept is not None:
            library.remove(concept.id)
        library.add(concept, passages)


def _require_own(config: ConceptsConfig) -> None:
    settings = config.model_dump(mode="json", include=set(SETTINGS) - set(_FREE))
    for name, value in settings.items():
        if value != SETTINGS[name]:
            raise ConfigError(
                f"the planted suite has its own {name}: leave it out (it takes --strategies, --seed and --output)"
            )


def _concept(name: str, passages: pa.Table) -> Concept:
    signal = next(signal for signal in SIGNALS if signal.id == name)
    counts = passages["token_count"].to_pylist()
    return Concept(
        id=concept_id(name),
        family="own",
        summary=f"Planted suite: {signal.summary}.",
        definition=f"Planted suite: {signal.summary}.",
        construction="Pairs of passages that differ in the signal alone.",
        matched_pairs=True,
        neighbours=Neighbours(),
        token_window=(min(counts), max(counts)),
        min_source_domains=1,
        corpus=revision_of(passages),
    )
