"""Steered texts as release rows: text, settings, scores, and the receipt that it was steered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.contracts.tables import table_from_rows
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.errors import ReceiptError
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench.plan import SteeringStages

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

#: Scores of one text by scorer.
TextScores = Mapping[str, Mapping[str, float | None]]


class TextKeys(NamedTuple):
    """Artifact keys of the texts of one concept and strategy."""

    strategy: str
    texts: str
    fluency: str


def sources(scope: Scope, stages: SteeringStages, concept: str) -> Iterator[TextKeys]:
    """Yield the contents of a concept's file, in order: unsteered texts, each strategy's, the null directions'."""
    yield TextKeys(UNSTEERED, *stages.unsteered.texts)
    for name in [*(spec.id for spec in scope.strategies), NULLS]:
        yield TextKeys(name, *stages.texts.concepts[concept].texts[name])


class ReleaseTable:
    """Turn the tables of one plan into release rows."""

    def __init__(self, scope: Scope) -> None:
        self._versions = {spec.id: spec.version for spec in scope.strategies}
        self._common = {
            "model": scope.model.ref.id,
            "model_revision": scope.model.ref.revision,
            "layer": scope.steering_layer,
            "alpha_unit": scope.config.budget.alpha_unit,
            "positions": scope.config.steering.positions,
            "temperature": scope.config.steering.temperature,
        }

    def of(self, concept: str, strategy: str, texts: pa.Table, fluency: pa.Table, scores: TextScores) -> pa.Table:
        """Return RELEASE rows of one concept and strategy; raise ReceiptError for a text without a valid receipt."""
        nll = dict(zip(fluency["text_id"].to_pylist(), fluency["mean_nll"].to_pylist(), strict=True))
        rows = []
        for row in texts.to_pylist():
            text_scores = scores.get(row["text_id"], {})
            rows.append({**row, **self._common, **_steering(row), **_scores(concept, text_scores)})
            rows[-1] |= {"concept": concept, "strategy": strategy, "strategy_version": self._versions.get(strategy)}
            rows[-1] |= {"opening_id": row["prompt_id"], "opening": row["prompt"], "mean_nll": nll.get(row["text_id"])}
        return table_from_rows(rows, RELEASE)


def _steering(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the direction of a text; raise ReceiptError if its receipt is missing or wrong."""
    if row["direction_key"] == UNSTEERED:
        return {"direction": None, "vector_hash": None}
    changed, expected = row["positions_changed"], row["positions_expected"]
    if not row["vector_hash"] or not expected or changed != expected:
        raise ReceiptError(
            f"text {row['text_id']} ({row['direction_key']}, strength {row['strength']:g}) has no valid receipt: "
            f"{changed} of {expected} positions, vector {row['vector_hash'] or 'unknown'}"
        )
    return {"direction": row["direction_key"].rpartition("/")[2]}


def _scores(concept: str, text_scores: Mapping[str, float | None]) -> dict[str, Any]:
    scorers = [name for name in sorted({*CONCEPTS.get(concept).neighbours}) if name in text_scores and name != concept]
    others = [{"scorer": name, "score": text_scores[name]} for name in scorers]
    return {"score": text_scores.get(concept), "neighbour_scores": others}
