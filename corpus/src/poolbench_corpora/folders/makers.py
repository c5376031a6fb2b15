"""Make the passages of one concept from a source: the grammar, the archives, the hub or copies of its datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.config import BUDGETS
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.library import own_passages
from poolbench_corpora.folders.counting import CARD_TOKENIZER, WORDS, token_counter
from poolbench_corpora.io import CORPUS_SPLITS
from poolbench_corpora.planted import build_planted, planted_concepts, planted_revision
from poolbench_corpora.yields import Yield

SOURCES = ("planted", "real", "hf", "local:PATH")
LOCAL = "local:"


@dataclass(frozen=True)
class BuildOptions:
    """What can be said about a build beside source, budget and seed."""

    tokenizer: str | None = None  # null: `words`, and for datasets the card's
    leave_out: frozenset[str] = frozenset()  # datasets that are not read
    unknown_licences: bool = False  # whether datasets without a known licence are read
    window: tuple[int, int] | None = None  # smallest and largest number of tokens; null: the source's own


@dataclass(frozen=True)
class Maker:
    """Makes concepts from one source."""

    revision: str
    tokenizer: str
    recipe: str
    identity: tuple[str, ...]  # what tells this build from others, for the folder of its finished concepts
    table: Callable[[str, Yield], pa.Table]

    @classmethod
    def of(cls, source: str, budget: str, seed: int, options: BuildOptions) -> Maker:
        """Return the maker of a source.

        Raises:
            UnknownNameError: No such budget or source.
            ConfigError: An option that the source does not take, or a tokenizer or library that cannot be had.
            CorpusError: No folder with copies of datasets, or none with the real-text archives.
        """
        if budget not in BUDGETS:
            raise UnknownNameError("budget", budget, BUDGETS)
        from_datasets = source == "hf" or source.startswith(LOCAL)
        if not from_datasets and source not in SOURCES:
            raise UnknownNameError("source", source, SOURCES)
        if not from_datasets and (options.leave_out or options.unknown_licences):
            raise ConfigError("--without and --unknown-licences are for datasets: --source hf or local:PATH")
        if source == "planted" and options.tokenizer not in (None, WORDS):
            raise ConfigError("planted passages are measured in words: leave --tokenizer out")
        name = options.tokenizer or (CARD_TOKENIZER if from_datasets else WORDS)
        settings: dict[str, Any] = {f"num_{split}": getattr(BUDGETS[budget], f"num_{split}") for split in CORPUS_SPLITS}
        settings |= {"seed": seed, "count_tokens": token_counter(name)}
        if options.window:
            settings["window"] = options.window
        revision, table = _from_datasets(source, settings, options) if from_datasets else _from_text(source, settings)
        tokenizer = Path(name).name if Path(name).exists() else name
        recipe = _recipe(source, budget, seed, options, tokenizer)
        return cls(revision, tokenizer, recipe, (recipe, revision, source, name), table)


def _recipe(source: str, budget: str, seed: int, options: BuildOptions, tokenizer: str) -> str:
    """Return the command. It goes into what is published, so it names no folder of this machine."""
    origin = f"{LOCAL}PATH" if source.startswith(LOCAL) else source
    command = f"poolbench-driver corpus build --source {origin} --budget {budget} --seed {seed}"
    if options.tokenizer:
        command += f" --tokenizer {tokenizer}"
    if options.leave_out:
        command += f" --without {','.join(sorted(options.leave_out))}"
    if options.window:
        command += f" --window {options.window[0]}-{options.window[1]}"
    return command + (" --unknown-licences" if options.unknown_licences else "")


def _from_text(source: str, settings: dict[str, Any]) -> tuple[str, Callable[[str, Yield], pa.Table]]:
    from poolbench_corpora.real import archives_folder, build_real, real_revision

    if source == "real":
        archives_folder()  # said once, and not for each concept
        revision = real_revision(concept.id for concept in CONCEPTS.all())
        return revision, lambda name, found: build_real(name, **settings, found=found)

    def table(name: str, found: Yield) -> pa.Table:
        concept = CONCEPTS.get(name)
        passages = own_passages(concept) if concept.corpus else build_planted(name, **settings)
        found.chosen = passages.num_rows
        return passages

    return planted_revision(planted_concepts()), table


def _from_datasets(
    source: str, settings: dict[str, Any], options: BuildOptions
) -> tuple[str, Callable[[str, Yield], pa.Table]]:
    from poolbench_corpora.hub import HUB_REVISION, build_hub, reader_of
    from poolbench_corpora.real.rewriting import REWRITERS_REVISION

    settings = settings | {"leave_out": options.leave_out, "unknown_licences": options.unknown_licences}
    reader = reader_of(source)
    return f"{HUB_REVISION}, {REWRITERS_REVISION}", lambda name, found: build_hub(name, reader, **settings, found=found)


def parse_window(text: str) -> tuple[int, int]:
    """Return smallest and largest number of tokens from `LOW-HIGH`; raise ConfigError for anything else."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise ConfigError(f"--window {text}: give the smallest and the largest number of tokens, such as 90-160")
    return int(low), int(high)
