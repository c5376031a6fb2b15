"""Steered texts that others published, in place of texts along strategies: read, checked and stored by the driver.

A folder has one table of each concept: `<concept>.jsonl` (or another kind of table), in the folder itself, in one
folder below it that is named as the model, or in `data/`, where `export steered-outputs` writes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.concepts import Concept
from poolbench.config.contents import FileState, content_hash, file_state
from poolbench.contracts.keys import digest
from poolbench.contracts.tables import IMPORTED_TEXTS, table_from_rows
from poolbench.errors import ConfigError, CorpusError, shown
from poolbench.steps.local import IMPORT_TEXTS, TABLE, TextsParams
from poolbench.texts import load_openings
from poolbench_corpora.reading import TABLE_ENDINGS, records
from poolbench_driver.corpora.sources import LocalStep

#: Names of columns, the first that a table has. An opening's text, or its number in the set, says what was continued.
STRATEGY = ("strategy", "strategy_id", "pooling_strategy", "pooling")
STRENGTH = ("strength", "alpha", "coefficient", "scale")
OPENING = ("opening", "prompt", "prompt_text")
NUMBER = ("prompt_idx", "prompt_index", "opening_index")
TEXT = ("text", "generated_text", "steered_text", "continuation", "generation", "output")


_EXPORTED = "data"
_SCORE = pa.struct([("scorer", pa.string()), ("score", pa.float64())])

#: One row per text. Null where a column does not apply: an unsteered text has no direction and no receipt.
RELEASE = pa.schema(
    [
        ("text_id", pa.string()),
        ("concept", pa.string()),
        ("model", pa.string()),
        ("model_revision", pa.string()),
        ("layer", pa.int32()),  # 0-based block after which was steered
        ("strategy", pa.string()),  # id, "nulls" or "unsteered"
        ("strategy_version", pa.int32()),
        ("direction", pa.string()),  # C1 ..., or null_007
        ("strength", pa.float64()),  # in alpha_unit
        ("alpha", pa.float64()),  # coefficient of the unit vector
        ("alpha_unit", pa.string()),
        ("positions", pa.string()),  # which positions were steered
        ("opening_id", pa.string()),
        ("opening", pa.string()),
        ("text", pa.string()),  # generated part only
        ("num_tokens", pa.int32()),
        ("temperature", pa.float64()),  # 0 is greedy
        ("sample", pa.int32()),
        ("sample_seed", pa.int64()),
        ("score", pa.float64()),  # P(concept) by the concept's own scorer
        ("neighbour_scores", pa.list_(_SCORE)),  # by the scorers of its neighbours
        ("mean_nll", pa.float64()),  # nats a token, under the unsteered model
        ("repeated_4grams", pa.float64()),
        ("vector_hash", pa.string()),
        ("positions_changed", pa.int32()),
        ("positions_expected", pa.int32()),
    ]
)


def exported_file(concept: str) -> str:
    """Return where `export steered-outputs` writes the texts of a concept: a table `RELEASE`."""
    return f"{_EXPORTED}/{concept}.parquet"


#: A set of openings, and how many of it.
Openings = tuple[str, int]


@dataclass(frozen=True)
class ImportedTexts:
    """The texts that a run reads instead of steering along strategies."""

    files: Mapping[str, Path]  # by concept
    names: Mapping[str, Sequence[str]]  # ids in the files by our strategy: ours, and its source's


@dataclass(frozen=True)
class Text:
    """One published text."""

    strategy: str
    strength: float
    opening: str | int
    text: str


def concept_file(folder: Path, concept: str, model_names: Sequence[str]) -> Path:
    """Return the table of a concept. Raise ConfigError if the folder has none."""
    for place in (folder, *(folder / name for name in model_names), folder / _EXPORTED):
        for ending in TABLE_ENDINGS:
            if (file := place / f"{concept}{ending}").is_file():
                return file
    raise ConfigError(
        f"steered_texts: {folder} has no texts of {concept} (looked for {concept}.jsonl in it, in "
        f"{' and '.join(model_names)}, and in data): leave the concept out, or name another folder"
    )


def texts_step(
    imported: ImportedTexts, concept: Concept, strategy: str, direction: str, openings: Openings
) -> LocalStep:
    """Return the step that stores the texts of a concept and strategy, which were steered along `direction`."""
    file, names = imported.files[concept.id], imported.names[strategy]
    params = TextsParams(
        concept=concept.id,
        strategy=strategy,
        direction=direction,
        openings=openings[0],
        count=openings[1],
        file=content_hash(file),
    )
    key = IMPORT_TEXTS.key(TABLE(), params, {}, restricted=concept.sensitive)

    def build() -> pa.Table:
        return _table(file, strategy, names, direction, openings)

    return LocalStep(key, f"imported texts {concept.id}/{strategy}", build, lambda: build().num_rows)


def require_texts(imported: ImportedTexts, concept: str, strengths: Sequence[float], openings: Openings) -> None:
    """Raise ConfigError if a strategy lacks texts at one of the run's strengths."""
    file = imported.files[concept]
    for strategy, names in imported.names.items():
        table = _table(file, strategy, names, "", openings)
        present = set(table["strength"].to_pylist())
        if lacking := [strength for strength in strengths if strength and strength not in present]:
            having = ", ".join(f"{strength:g}" for strength in sorted(present))
            raise ConfigError(
                f"steered_texts: {file} has no texts of {strategy} at strength {lacking[0]:g}; it has {having}: set "
                "budget.strengths, and budget.alpha_unit to absolute where they are coefficients"
            )


def _table(file: Path, strategy: str, names: Sequence[str], direction: str, openings: Openings) -> pa.Table:
    """Return IMPORTED_TEXTS of a strategy, of the run's openings alone. Raise ConfigError if there are none."""
    texts = _read(file, file_state(file))
    opening_rows = load_openings(*openings).to_pylist()
    by_opening: dict[str | int, Mapping[str, Any]] = {row["text"].strip(): row for row in opening_rows}
    by_opening |= dict(enumerate(opening_rows))
    rows = [
        {
            "text_id": digest(["imported", strategy, direction, text.strength, row["prompt_id"]], 20),
            "prompt_id": row["prompt_id"],
            "direction_key": f"{strategy}/{direction}",
            "strength": text.strength,
            "prompt": row["text"],
            "text": text.text,
        }
        for text in texts
        if text.strategy in names and (row := by_opening.get(text.opening)) is not None
    ]
    if not rows:
        strategies = ", ".join(sorted({text.strategy for text in texts})[:20])
        raise ConfigError(
            f"steered_texts: {file} has no texts of {strategy} after openings of {openings[0]}; it has {strategies}"
        )
    if len({row["text_id"] for row in rows}) < len(rows):
        raise CorpusError(f"{file}: {strategy} has several texts of one strength and opening; one is needed")
    return table_from_rows(rows, IMPORTED_TEXTS)


@lru_cache(maxsize=32)
def _read(file: Path, _: FileState) -> tuple[Text, ...]:
    """Return the texts of a table. Raise CorpusError, with file and line, if a row cannot be used."""
    texts = []
    for where, values in records(file):
        strategy, strength, text = (_value(values, names, where) for names in (STRATEGY, STRENGTH, TEXT))
        try:
            amount = float(strength)
        except (TypeError, ValueError):
            raise CorpusError(f"{where}: the strength {shown(str(strength))} is not a number") from None
        if amount == 0 or strategy is None:
            continue  # unsteered texts are generated by the run
        number = next((values[name] for name in NUMBER if values.get(name) is not None), None)
        opening = int(number) if number is not None else str(_value(values, OPENING, where)).strip()
        texts.append(Text(str(strategy), round(amount, 9), opening, "" if text is None else str(text)))
    return tuple(texts)


def _value(values: Mapping[str, Any], names: Sequence[str], where: str) -> Any:
    """Return the value in the first of several columns that a row has. Raise CorpusError if it has none of them."""
    for name in names:
        if name in values:
            return values[name]
    raise CorpusError(f"{where}: no column {' or '.join(names)}; it has {', '.join(list(values)[:12])}")
