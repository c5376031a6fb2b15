"""The two main tables of the benchmark, of concepts and of strategies, and the tables beside them, from the code.

A column is one entry of a mapping: its head, and the function that makes its cell.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.concepts import CONCEPTS, Concept
from poolbench.concepts.concept import Family
from poolbench.config import REAL_CORPUS, asset_path
from poolbench.pooling.registry import STRATEGIES, StrategySpec
from poolbench.pooling.signals import SIGNALS
from poolbench_corpora.io import CORPUS_SPLITS, CorpusManifest, read_manifest
from poolbench_driver.pages.text import table

#: More domains than these are counted in the table of concepts; the table of sources names them.
_MAX_DOMAINS = 3
#: What signals are made from, by `Signal.source`.
_MADE_FROM = {"states": "hidden states", "attention": "attention", "loss": "backward pass", "counts": "token counts"}
#: What a strategy needs beside the hidden states of a passage, and the cost of it.
_COSTS = {
    "annotation": "one parse",
    "labels": "",
    "token states": "token states stored, one fit per fold",
    "attention": "attention of one block",
    "attention per head": "attention of one block, one vector per head",
    "backward pass": "whole forward pass, backward pass",
    "token counts": "one count",
}
#: Parts of licences that ask for more, or less, than to name the author and the licence.
_LICENCES = {"public domain": "public domain", "CC0": "public domain", "BY-SA": "share-alike", "GPL": "share-alike"}


def concept_parts() -> dict[str, str]:
    """Return the tables of the concepts, of their two classes and of the sources of real text."""
    concepts = sorted(CONCEPTS.built_in(), key=lambda concept: (get_args(Family).index(concept.family), concept.id))
    return {
        "concepts": _table(_CONCEPT_COLUMNS, concepts),
        "negatives": _table(_NEGATIVE_COLUMNS, concepts),
        "sources": _table(_SOURCE_COLUMNS, sorted(_manifest().sources)),
    }


def strategy_parts() -> dict[str, str]:
    """Return the tables of the strategies of each board, and of the signals that they need."""
    boards = {board: [spec for spec in STRATEGIES.built_in() if spec.board == board] for board in ("card", "extended")}
    signals = ((f"`{signal.name}`", _MADE_FROM[signal.source], signal.summary) for signal in SIGNALS.values())
    return {board: _table(_STRATEGY_COLUMNS, specs) for board, specs in boards.items()} | {
        "signals": table(("signal", "made from", "meaning"), signals)
    }


def _table(columns: Mapping[str, Callable[[Any], str]], rows: Iterable[Any]) -> str:
    return table([*columns], ([cell(row) for cell in columns.values()] for row in rows))


@cache
def _manifest() -> CorpusManifest:
    manifest = read_manifest(asset_path(REAL_CORPUS))
    assert manifest is not None
    return manifest


@cache
def _passages() -> Mapping[str, pa.Table]:
    """Return the passages of real text that ship, by concept."""
    folder, columns = asset_path(REAL_CORPUS), ["split", "label", "domain", "source", "licence"]
    return {PurePosixPath(path).parts[-2]: pq.read_table(folder / path, columns=columns) for path in _manifest().tables}


def _values(concept: Concept, column: str) -> list[str]:
    """Return the values of a column of a concept's real passages, sorted; none if there are no passages."""
    passages = _passages().get(concept.id)
    return sorted(set(passages[column].to_pylist())) if passages else []


def _domains(concept: Concept) -> str:
    domains = _values(concept, "domain")
    return (", ".join(domains) if len(domains) <= _MAX_DOMAINS else f"{len(domains)} domains") or "none"


def _num_passages(concept: Concept) -> str:
    passages = _passages().get(concept.id)
    counts = Counter(passages["split"].to_pylist() if passages else ())
    return " / ".join(f"{counts[split]:,}" for split in CORPUS_SPLITS) if passages else ""


def _verdict(concept: Concept) -> str:
    tables = _manifest().tables.items()
    return next((facts.verdict for path, facts in tables if PurePosixPath(path).parts[-2] == concept.id), "")


def _licences(concept: Concept) -> str:
    kinds = {_kind_of_licence(licence) for licence in _values(concept, "licence")}
    return ", ".join(kind for kind in ("public domain", "permissive", "share-alike") if kind in kinds)


def _of_source(source: str, column: str) -> list[str]:
    """Return the values of a column of the passages of a source."""
    return sorted(
        {row[column] for passages in _passages().values() for row in passages.to_pylist() if row["source"] == source}
    )


def _kind_of_licence(licence: str) -> str:
    return next((kind for part, kind in _LICENCES.items() if part in licence), "permissive")


def _has(concept: str, source: str) -> bool:
    return source in _passages()[concept]["source"].to_pylist()


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _needs(spec: StrategySpec) -> list[str]:
    """Return the keys of `_COSTS` of a strategy."""
    return [kind for kind in dict.fromkeys(map(_kind_of, spec.needs)) if kind in _COSTS]


def _kind_of(need: str) -> str:
    signal = SIGNALS.get(need)
    if signal is None:
        return "token states" if need == "states" else need
    return _MADE_FROM[signal.source] + " per head" * signal.per_head


def _notes(spec: StrategySpec) -> str:
    notes = [f"version {spec.version}"] * (spec.version > 1)
    notes += [f"`{name}={str(value).lower()}`" for name, value in spec.params.items() if name in spec.settable]
    notes += ["uses the concept's words"] * spec.uses_concept_lexicon + ["on request only"] * spec.on_request
    return "; ".join([*notes, *["constant after a BOS"] * spec.collapses_with_bos])


_CONCEPT_COLUMNS: Mapping[str, Callable[[Concept], str]] = {
    "concept": lambda concept: f"`{concept.id}`" + ", sensitive" * concept.sensitive,
    "definition": lambda concept: concept.summary.rstrip("."),
    "neighbours (distant, close)": lambda concept: ", ".join(f"`{name}`" for name in concept.neighbours),
    "tokens": lambda concept: "{} to {}".format(*concept.token_window),
    "real passages from": _domains,
    "train / test / scorer": _num_passages,
    "audit": _verdict,
    "licences": _licences,
}

_NEGATIVE_COLUMNS: Mapping[str, Callable[[Concept], str]] = {
    "concept": lambda concept: f"`{concept.id}`",
    "family": lambda concept: concept.family.replace("_", "-"),
    "positives": lambda concept: _in_one_line(concept.definition),
    "negatives": lambda concept: _in_one_line(concept.construction),
    "seed words": lambda concept: ", ".join(concept.seed_words),
    "domains": lambda concept: str(concept.min_source_domains),
}

_SOURCE_COLUMNS: Mapping[str, Callable[[str], str]] = {
    "source": lambda source: f"`{source}`",
    "domains": lambda source: ", ".join(_of_source(source, "domain")),
    "concepts": lambda source: ", ".join(name for name in sorted(_passages()) if _has(name, source)),
    "passages": lambda source: f"{_manifest().sources[source].passages:,}",
    "licence": lambda source: _manifest().sources[source].licence,
    "origin": lambda source: _manifest().sources[source].origin,
}

_STRATEGY_COLUMNS: Mapping[str, Callable[[StrategySpec], str]] = {
    "id": lambda spec: f"`{spec.id}`",
    "definition": lambda spec: spec.summary,
    "needs": lambda spec: ", ".join(_needs(spec)),
    "cost": lambda spec: "; ".join(_COSTS[kind] for kind in _needs(spec) if _COSTS[kind]),
    "notes": _notes,
}
