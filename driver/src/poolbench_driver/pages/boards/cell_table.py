"""The cells of a board by block and entrant."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from poolbench.errors import ConfigError
from poolbench.statuses import Status
from poolbench_driver.config import ALONG

#: An entrant that cannot represent the concept at all takes the shared worst rank of the block.
WORST_STATUSES = (Status.COLLAPSED, Status.NO_COVERAGE, Status.CLASS_DEPENDENT_COVERAGE)
#: A block whose scorer cannot measure anybody is dropped.
DROP_STATUSES = (Status.NO_SCORER, Status.SCORER_INVALID, Status.RESTRICTED)
#: These say that the entrant is not built here: it leaves the board.
ABSENT_STATUSES = (Status.NOT_IMPLEMENTED,)

#: Columns in which all rows of one board agree: a published figure is another quantity than a corrected one, and
#: planted passages are diagnostics that real ones are never ranked with.
ONE_QUANTITY = (
    "suite", "protocol", "budget", "dataset", "dataset_revision", "direction", "alpha_unit", "opening_set",
    "metric_version",
)  # fmt: skip

Cell = Mapping[str, Any]
#: Model and layer of a cell, None where a row has none.
Unit = tuple[Any, Any]


def require_one_quantity(cells: Iterable[Cell], metric: str, entrant: str = "strategy") -> None:
    """Raise ConfigError if rows of a metric differ in a column of `ONE_QUANTITY`, or an entrant has two versions.

    Entrants whose names contain their direction may have different directions.
    """
    values_by_column: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for cell in cells:
        if cell["metric"] == metric:
            says_direction = ALONG in (cell[entrant] or "")
            for name in ONE_QUANTITY:
                owner = f" of {cell[entrant]}" if name == "direction" and says_direction else ""
                values_by_column[name, owner].add(cell.get(name))
            values_by_column["strategy_version", f" of {cell[entrant]}"].add(cell.get("strategy_version"))
    for (name, owner), values in values_by_column.items():
        if len(quantities := sorted(map(str, values - {None}))) > 1:
            reason = (
                f"{metric} of {name}{owner} {' and '.join(quantities)}: different quantities are never ranked together"
            )
            raise ConfigError(reason)


def cell_table(
    cells: Iterable[Cell],
    metric: str,
    higher_is_better: bool,
    entrant: str = "strategy",
    block: str = "concept",
    averaged: bool = True,
) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    """Return the value by entrant and block, and the dropped blocks with the reason.

    A worst-rank null is -inf (inf if lower is better). Any other null is NaN. A cell that lacks a layer or model of its
    block is NaN too.
    """
    worst = -np.inf if higher_is_better else np.inf
    gathered: dict[tuple[str, str], dict[Unit, list[float]]] = defaultdict(lambda: defaultdict(list))
    units: dict[str, set[Unit]] = defaultdict(set)
    dropped: dict[str, str] = {}
    for cell in cells:
        if cell["metric"] != metric or cell["status"] in ABSENT_STATUSES:
            continue
        if cell["status"] in DROP_STATUSES:
            dropped[cell[block]] = cell["status"]
            continue
        value = worst if cell["status"] in WORST_STATUSES else cell["value"]
        unit = (cell.get("model"), cell.get("layer")) if averaged else (None, None)
        gathered[cell[entrant], cell[block]][unit].append(np.nan if value is None else float(value))
        units[cell[block]].add(unit)
    return {key: _average(values, units[key[1]]) for key, values in gathered.items()}, dropped


def _average(values: Mapping[Unit, list[float]], units: set[Unit]) -> float:
    """Average over the layers of each model, then over models. Return NaN if the cell lacks a unit of its block."""
    if set(values) != units:
        return float("nan")
    models: dict[Any, list[float]] = defaultdict(list)
    for (model, _), unit_values in values.items():
        models[model] += unit_values
    return float(np.mean([np.mean(unit_values) for unit_values in models.values()]))
