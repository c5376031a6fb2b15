"""Measured figures: the part of a result row that a pure function knows; gate and score range of a concept's scorer."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import CellError
from poolbench.statuses import Status


@dataclass(frozen=True)
class Measure:
    """A value with its interval, or null with status and reason.

    `params` holds settings only. It identifies the cell and enters `cell_id`. `details` holds outcomes that explain the
    value (a chosen strength, the spread of the null directions) and is not part of a row's identity. `n` counts
    passages (D1) or openings (D2, D3). `num_groups` counts the units that were resampled.
    """

    metric: str
    value: float | None
    status: Status = Status.OK
    reason: str | None = None
    direction: str | None = None
    neighbour: str | None = None
    scorer: str | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    ci_method: str | None = None
    n: int | None = None
    num_groups: int | None = None
    coverage: float | None = None
    seed: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        assert (self.value is None) == (self.status != Status.OK), (self.metric, self.value, self.status)

    @classmethod
    def of(cls, metric: str, value: float, interval: tuple[float, float] | None = None, **fields: Any) -> Self:
        """Return a measure of `value`, or a null with status `non_finite` if the value is not finite."""
        if not math.isfinite(value):
            return cls.null(metric, "non_finite", **{**fields, "reason": f"{metric} came out as {value}"})
        if interval is None:
            return cls(metric, float(value), **{**fields, "ci_method": None})
        return cls(metric, float(value), ci_low=float(interval[0]), ci_high=float(interval[1]), **fields)

    @classmethod
    def null(cls, metric: str, status: Status | str, reason: str, **fields: Any) -> Self:
        """Return a measure without value."""
        return cls(metric, None, status=Status(status), reason=reason, **{**fields, "ci_method": None})

    @classmethod
    def failed(cls, metric: str, error: CellError, **fields: Any) -> Self:
        """Return the null that `error` causes."""
        return cls.null(metric, error.status, str(error), **fields)

    def with_fields(self, **fields: Any) -> Self:
        """Return a copy with some fields replaced."""
        return replace(self, **fields)

    def to_row(self) -> dict[str, Any]:
        """Return the columns of MEASURES and of the result schema that are known here, `params` as JSON."""
        return asdict(self) | {"params": json.dumps(self.params, sort_keys=True)}


def to_rows(measures: Iterable[Measure]) -> list[dict[str, Any]]:
    return [measure.to_row() for measure in measures]


def measures_table(measures: Iterable[Measure], confidential: Collection[str] = ()) -> pa.Table:
    """Return MEASURES, with the details that are not confidential as JSON in a further column `details`."""
    rows = to_rows(measures)
    objects = [{name: value for name, value in row["details"].items() if name not in confidential} for row in rows]
    details = [json.dumps(fields, sort_keys=True) if fields else None for fields in objects]
    return table_from_rows(rows, MEASURES).append_column("details", pa.array(details, pa.string()))


@dataclass(frozen=True)
class GatedScorer:
    """The gate and the score range of a concept's scorer, which D2 and D3 need."""

    concept: str  # its concept; the value of `scorer` in SCORES
    status: Status = Status.OK  # `ok`, `no_scorer` or `scorer_invalid` (the gate failed)
    reason: str = ""  # why it is not ok
    positive_mean: float = 1.0  # mean score of held-out positive passages cut to generation length
    negative_mean: float = 0.0  # the same for negatives

    @property
    def score_range(self) -> float:
        """Return the score of held-out positives minus negatives, the unit of D3's shifts."""
        return self.positive_mean - self.negative_mean

    @property
    def _why(self) -> str:
        return self.reason or f"the scorer of {self.concept} is {self.status}"

    def require_trained(self) -> None:
        """Raise CellError if there is no scorer. The published protocol accepts a failed gate."""
        if self.status not in (Status.OK, Status.SCORER_INVALID):
            raise CellError(self.status, self._why)

    def require_valid(self) -> None:
        """Raise CellError if the scorer did not pass its gate or scores positives no higher than negatives."""
        if self.status != Status.OK:
            raise CellError(self.status, self._why)
        if not self.score_range > 0:
            raise CellError(
                Status.SCORER_INVALID,
                f"the scorer of {self.concept} scores held-out positives {self.positive_mean:.3f} and "
                f"negatives {self.negative_mean:.3f}; positives must score higher",
            )

    @classmethod
    def from_gate(cls, concept: str, rows: list[Mapping[str, Any]]) -> "GatedScorer":
        """Read the scorer of `concept` from the MEASURES rows of its gate.

        Without such rows, the status is `no_scorer`.

        `scorer.gate` is 1 if the scorer passed the gate. Rows with a `part` other than `verdict` in their params are
        single checks. `scorer.positive_mean` and `scorer.negative_mean` hold the mean scores.
        """
        # The rows of single checks have another part.
        parts = ((json.loads(row.get("params") or "{}").get("part", "verdict"), row) for row in rows)
        values = {row["metric"]: row for part, row in parts if part == "verdict"}
        gate = values.get("scorer.gate")
        if gate is None:
            return cls(concept, Status.NO_SCORER, f"no scorer was trained for {concept}")
        if gate["value"] != 1:
            reason = gate["reason"] or f"the scorer of {concept} failed its gate"
            return cls(concept, Status.SCORER_INVALID, reason)
        try:
            means = [float(values[f"scorer.{side}_mean"]["value"]) for side in ("positive", "negative")]
        except (KeyError, TypeError):
            reason = f"the scorer of {concept} has no scores on held-out passages"
            return cls(concept, Status.SCORER_INVALID, reason)
        return cls(concept, positive_mean=means[0], negative_mean=means[1])
