"""One measured figure: the part of a result row that a pure function knows."""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from poolbench.contracts.tables import MEASURES, table_from_rows
from poolbench.errors import CellError
from poolbench.statuses import Status


@dataclass(frozen=True)
class Measure:
    """A value with interval, or null with status and reason.

    `params` identifies the cell (it enters `cell_id`) and holds settings only. `details` holds outcomes that explain
    the value (a chosen strength, the spread of the null directions) and is not part of a row's identity. `n` counts
    passages (D1) or openings (D2, D3), `num_groups` the units that were resampled.
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
