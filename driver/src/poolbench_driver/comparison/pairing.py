"""The cells that two runs have in common, when runs must not be compared, and changes in presence or status."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from poolbench.contracts import Row
from poolbench.errors import ConfigError, InputError, UnknownNameError
from poolbench_driver.records import Run
from poolbench_driver.results import IDENTITY, is_rank


def read_results(run: Run) -> list[dict[str, Any]]:
    """Return a run's result rows. Raise IntegrityError if the file is damaged, InputError if it has no result rows.

    For every suite, `strategy` names the entrant, and `concept` the block that figures are averaged over. `is_apart`
    marks the rows that the suite does not rank, because `concept` no longer shows this. These rows keep their concept.
    """
    rows = run.tables["results"].to_pylist()
    if not rows:
        raise InputError(f"{run.id}/results.parquet has no rows: nothing was measured")
    board = run.suite.board
    return [
        {
            **row,
            "strategy": row[board.entrant],
            "concept": row["concept" if board.is_apart(row) else board.block],
            "is_apart": board.is_apart(row),
        }
        for row in rows
    ]


#: Columns in which two runs must agree: a figure of another protocol or budget is another quantity.
SAME = ("suite", "protocol", "budget")
#: Identity columns that a comparison may ignore, by the name of the option.
ACROSS = {
    "model": ("model", "model_revision"),
    "data": ("dataset_revision",),
    "versions": ("strategy_version", "metric_version"),
}


@dataclass(frozen=True)
class Pairing:
    """Cells of two runs: pairs of common cells (first run first), and the cells that the other run lacks."""

    common: list[tuple[Row, Row]]
    only_first: list[Row]
    only_second: list[Row]


def pair_cells(first: Sequence[Row], second: Sequence[Row], across: Iterable[str] = ()) -> Pairing:
    """Pair result rows by identity. Ranks are left out, because they compare a run's strategies with one another.

    Raises:
        UnknownNameError: `ACROSS` lacks a name of `across`.
        ConfigError: Suite, protocol or budget differ, or no cell is common.
        InputError: A run has two rows of one cell.
    """
    for name in (groups := list(across)):
        if name not in ACROSS:
            raise UnknownNameError("column group", name, ACROSS)
    _refuse_incomparable(first, second)
    ignored = {column for name in groups for column in ACROSS[name]}
    names = [name for name in IDENTITY if name not in ignored]
    left, right = _by_identity(first, names, "first run"), _by_identity(second, names, "second run")
    common = [(row, right[key]) for key, row in left.items() if key in right]
    if not common:
        raise ConfigError(f"the runs have no cell in common: {_differences(first, second, names)}")
    return Pairing(
        common,
        [row for key, row in left.items() if key not in right],
        [row for key, row in right.items() if key not in left],
    )


def join_rows(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Join the rows of several runs, for example of several models, for one board over all of these runs.

    Rows that their suite keeps apart are left out. If several runs have the same value of a cell, such as a baseline,
    the cell counts once.

    Raises:
        ConfigError: Suite, protocol, budget or data differ. Planted and real corpora are never ranked together.
        InputError: Two runs have different values of the same cell.
    """
    first, *others = runs
    for other in others:
        _refuse_incomparable(first, other, (*SAME, "dataset", "dataset_revision"))
    together, cells = list(first), _by_identity(first, IDENTITY, "the first run")
    for other in others:
        measured = _by_identity(other, IDENTITY, "a run")
        new = {key: row for key, row in measured.items() if key not in cells}
        for key, row in measured.items():
            if key not in new and any(row[name] != cells[key][name] for name in ("value", "status")):
                raise InputError(f"two runs have different values of one cell: {_cell(IDENTITY, key)}")
        cells |= new
        together += [*new.values(), *(row for row in other if is_rank(row))]
    return [row for row in together if not row["is_apart"]]


def _refuse_incomparable(first: Sequence[Row], second: Sequence[Row], columns: Sequence[str] = SAME) -> None:
    different = []
    for name in columns:
        sides = [" and ".join(sorted({str(row[name]) for row in rows})) for rows in (first, second)]
        if sides[0] != sides[1]:
            different.append(f"{name} {sides[0] or 'of no rows'} against {sides[1] or 'of no rows'}")
    if different:
        reason = "figures that differ in these are different quantities"
        raise ConfigError(f"the runs are not comparable: {', '.join(different)}; {reason}")


def _by_identity(rows: Iterable[Row], names: Sequence[str], which: str) -> dict[tuple[Any, ...], Row]:
    row_by_identity: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if is_rank(row):
            continue
        key = tuple(row[name] for name in names)
        if key in row_by_identity:
            raise InputError(f"{which}: two rows of one cell: {_cell(names, key)}")
        row_by_identity[key] = row
    return row_by_identity


def _cell(names: Sequence[str], key: Sequence[Any]) -> str:
    """Return the identity of a cell as text."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, key, strict=True) if value is not None)


def _differences(first: Sequence[Row], second: Sequence[Row], names: Iterable[str]) -> str:
    """Return the identity columns without a common value, and the option that ignores them."""
    parts = []
    for name in names:
        sides = [{row[name] for row in rows} for rows in (first, second)]
        if sides[0].isdisjoint(sides[1]):
            option = next((f" (--across {key})" for key, columns in ACROSS.items() if name in columns), "")
            parts.append(f"{name} {', '.join(map(str, sides[0]))} against {', '.join(map(str, sides[1]))}{option}")
    return "; ".join(parts) or "they measured different strategies, concepts or layers"


#: Values this close are the same result: recomputed D1 must agree within it.
SAME_VALUE = 1e-6


def cell_counts(pairing: Pairing) -> dict[str, int]:
    """Return counts of common cells, of cells in one run only, and of changed statuses and values."""
    return {
        "common": len(pairing.common),
        "only_first": len(pairing.only_first),
        "only_second": len(pairing.only_second),
        "changed_status": sum(a["status"] != b["status"] for a, b in pairing.common),
        "changed_value": sum(abs(b["value"] - a["value"]) > SAME_VALUE for a, b in measured_pairs(pairing)),
    }


def measured_pairs(pairing: Pairing) -> list[tuple[Row, Row]]:
    """Return the common cells with a value in both runs."""
    return [(a, b) for a, b in pairing.common if a["value"] is not None and b["value"] is not None]


def cells_of_one_run(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Return unpaired cells of one run by metric: count, strategies, and how the other run's cells differ."""
    lines = []
    for metric in sorted({row["metric"] for row in rows}):
        metric_rows = [row for row in rows if row["metric"] == metric]
        other_rows = [row for row in others if row["metric"] == metric]
        names = sorted({row["strategy"] or "" for row in metric_rows})
        strategies = ", ".join(names) if len(names) <= 3 else f"{len(names)} strategies"
        lines.append(
            {
                "metric": metric,
                "strategies": strategies,
                "cells": len(metric_rows),
                "why": _why(metric_rows, other_rows),
            }
        )
    return lines


def _why(metric_rows: Sequence[Row], other_rows: Sequence[Row]) -> str:
    if not other_rows:
        return "not measured there"
    sides = {name: ({row[name] for row in metric_rows}, {row[name] for row in other_rows}) for name in IDENTITY}
    if sides.pop("strategy")[0].isdisjoint({row["strategy"] for row in other_rows}):
        return "not measured there for these strategies"
    apart = [f"{name} {_shown(a)} here, {_shown(b)} there" for name, (a, b) in sides.items() if a.isdisjoint(b)]
    return "; ".join(apart) or "other strategies, concepts or settings"


def _shown(values: set[Any]) -> str:
    return ", ".join(sorted(map(str, values))[:3])


def status_changes(pairing: Pairing) -> list[Row]:
    """Change of status by metric and strategy, counted, with an example of the new reason."""
    counts: Counter[tuple[str, ...]] = Counter()
    reasons: dict[tuple[str, ...], str] = {}
    for a, b in pairing.common:
        if a["status"] != b["status"]:
            key = (a["metric"], a["strategy"] or "", a["status"], b["status"])
            counts[key] += 1
            reasons.setdefault(key, b["reason"] or a["reason"] or "")
    names = ("metric", "strategy", "from", "to")
    return [
        {**dict(zip(names, key, strict=True)), "cells": count, "reason": reasons[key]}
        for key, count in sorted(counts.items())
    ]
