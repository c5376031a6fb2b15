"""D1 in detail: each strategy's probe, test, nested and direction AUROCs, means over concepts and layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from poolbench_driver.report.means import Cells, MeansTable, by_strategy, mean_text

Row = dict[str, Any]

PRIMARY = "d1.auroc"
#: Columns before those of the directions, with their decimals.
METRICS = {PRIMARY: 3, "d1.auroc_test": 3, "d1.auroc_nested": 3, "d1.auroc_test_nested": 3, "d1.seed_spread": 4}
FAMILY = "d1.direction."
#: The order of docs/metrics.md; directions that others registered follow by name.
DIRECTIONS = ("C1", "C2", "C3", "C4", "C5", "LDA", "C1_centred")


def build_d1(rows: Iterable[Row], order: Sequence[str]) -> MeansTable | None:
    """The table of D1; None where the run did not measure it.

    Args:
        rows: Result rows.
        order: Strategies, first on top.
    """
    cells = by_strategy(row for row in rows if row["metric"] in METRICS or row["metric"].startswith(FAMILY))
    metrics = _metrics(cells)
    if PRIMARY not in metrics:
        return None
    strategies = [name for name in order if (name, PRIMARY) in cells]
    return MeansTable(
        heads=[metric.removeprefix(FAMILY) for metric in metrics],
        lines=[(name, [_text(cells, name, metric) for metric in metrics]) for name in strategies],
        notes=_notes(cells, metrics),
    )


def _metrics(cells: Cells) -> list[str]:
    """The columns that the run has, in their order."""
    present = {metric for _, metric in cells}
    known = [*METRICS, *(FAMILY + name for name in DIRECTIONS)]
    return [metric for metric in known if metric in present] + sorted(present - set(known))


def _text(cells: Cells, strategy: str, metric: str) -> str:
    """A cell's mean, or its status; a cell that failed as a whole has rows of ``d1.auroc`` alone, which say why."""
    rows = cells.get((strategy, metric))
    if rows is None:
        whole = cells[strategy, PRIMARY]
        return "" if any(row["value"] is not None for row in whole) else mean_text(whole)
    return mean_text(rows, METRICS.get(metric, 3))


def _notes(cells: Cells, metrics: Sequence[str]) -> list[str]:
    """Which columns are of fewer layers than the probe's."""
    layers = {metric: _layers(cells, metric) for metric in metrics}
    return [
        f"{metric.removeprefix(FAMILY)}: layer{'s' if len(found) > 1 else ''} {', '.join(map(str, found))} only"
        for metric, found in layers.items()
        if found and found != layers[PRIMARY]
    ]


def _layers(cells: Cells, metric: str) -> list[int]:
    return sorted({row["layer"] for (_, m), rows in cells.items() if m == metric for row in rows} - {None})
