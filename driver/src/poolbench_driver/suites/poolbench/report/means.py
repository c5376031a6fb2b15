"""Tables of means over concepts and layers: D1 in detail, and the published definitions beside the corrected ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from poolbench.contracts import Row

#: Rows by strategy and column.
Cells = Mapping[tuple[str, str], list[Row]]


@dataclass(frozen=True)
class MeansTable:
    """A table with one line per strategy."""

    heads: list[str]
    lines: list[tuple[str, list[str]]]  # strategy and its cells, each a number or the reason for its absence
    groups: list[tuple[str, list[str]]] = field(default_factory=list)  # metrics and the heads of their columns
    notes: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        """Return the heads of the groups."""
        return [metric for metric, _ in self.groups]

    @property
    def full_heads(self) -> list[str]:
        """Return heads that need no second line."""
        return [f"{group} {head}" for group, heads in self.groups for head in heads] or self.heads


def mean_text(rows: Iterable[Row], digits: int = 3) -> str:
    """Return the mean of the values that exist, with their share of the cells; or the commonest status."""
    cells = list(rows)
    values = [row["value"] for row in cells if row["value"] is not None]
    if not values:
        return Counter(row["status"] for row in cells).most_common(1)[0][0] if cells else ""
    share = "" if len(values) == len(cells) else f" ({len(values)}/{len(cells)})"
    return f"{fmean(values):z.{digits}f}{share}"


def by_strategy(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return rows by strategy and metric; those of no strategy are left out."""
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["strategy"]:
            cells[row["strategy"], row["metric"]].append(row)
    return dict(cells)


PRIMARY = "d1.auroc"
#: Columns before those of the directions, with their decimals.
D1_METRICS = {PRIMARY: 3, "d1.auroc_test": 3, "d1.auroc_nested": 3, "d1.auroc_test_nested": 3, "d1.seed_spread": 4}
FAMILY = "d1.direction."
#: The order of docs/metrics.md; directions that others registered follow by name.
DIRECTIONS = ("C1", "C2", "C3", "C4", "C5", "LDA", "C1_centred")


def build_d1(rows: Iterable[Row], order: Sequence[str]) -> MeansTable | None:
    """Return the table of D1 with strategies in `order`; None where the run did not measure it."""
    cells = by_strategy(row for row in rows if row["metric"] in D1_METRICS or row["metric"].startswith(FAMILY))
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
    """Return the columns that the run has, in their order."""
    present = {metric for _, metric in cells}
    standard = [*D1_METRICS, *(FAMILY + name for name in DIRECTIONS)]
    return [metric for metric in standard if metric in present] + sorted(present - set(standard))


def _text(cells: Cells, strategy: str, metric: str) -> str:
    """Return a cell's mean, or its status; of a cell that failed as a whole, the status is in `d1.auroc`."""
    rows = cells.get((strategy, metric))
    if rows is None:
        whole = cells[strategy, PRIMARY]
        return "" if any(row["value"] is not None for row in whole) else mean_text(whole)
    return mean_text(rows, D1_METRICS.get(metric, 3))


def _notes(cells: Cells, metrics: Sequence[str]) -> list[str]:
    """Return notes on columns with fewer layers than the probe's."""
    layers = {
        metric: sorted({row["layer"] for (_, of), rows in cells.items() if of == metric for row in rows} - {None})
        for metric in metrics
    }
    return [
        f"{metric.removeprefix(FAMILY)}: layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} only"
        for metric, numbers in layers.items()
        if numbers and numbers != layers[PRIMARY]
    ]


PUBLISHED_METRICS = ("d1.auroc", "d2.scp", "d2.scp_1", "d3.ld", "d3.lc")
#: By metric the SCPs of its published columns; an empty text where it has none.
Readings = dict[str, list[str]]


def build_published(published: Iterable[Row] | None, rows: Iterable[Row], order: Sequence[str]) -> MeansTable | None:
    """Return published and corrected means of the metrics that both have; None without them.

    Args:
        published: Rows of `published.parquet`; None where a run has no such table.
        order: Strategies as elsewhere on the page, for those with equal published AUROC.
    """
    corrected = by_strategy(row for row in rows if row["metric"] in PUBLISHED_METRICS)
    theirs = by_strategy(published or ())
    readings = _readings(theirs, {metric for _, metric in corrected})
    present = [name for name in order if any((name, metric) in theirs for metric in readings)]
    strategies = sorted(present, key=lambda name: -_first(theirs, name))
    if not strategies:
        return None
    groups = [
        (metric, [*(f"published ({scp})" if scp else "published" for scp in scps), "corrected"])
        for metric, scps in readings.items()
    ]
    return MeansTable(
        heads=[head for _, heads in groups for head in heads],
        lines=[(name, _line(name, readings, theirs, corrected)) for name in strategies],
        groups=groups,
    )


def _readings(theirs: Cells, corrected: set[str]) -> Readings:
    """Return the published columns of each metric: D3 has one for each reading of SCP."""
    readings: Readings = {}
    for metric in PUBLISHED_METRICS:
        scps = dict.fromkeys(_scp(row) for (_, m), rows in theirs.items() if m == metric for row in rows)
        if scps and metric in corrected:
            readings[metric] = sorted(scps)
    return readings


def _scp(row: Row) -> str:
    return str(json.loads(row["params"]).get("scp", ""))


def _line(name: str, readings: Readings, theirs: Cells, corrected: Cells) -> list[str]:
    cells: list[str] = []
    for metric, scps in readings.items():
        rows = theirs.get((name, metric), [])
        cells += [mean_text(row for row in rows if _scp(row) == scp) for scp in scps]
        cells.append(mean_text(corrected.get((name, metric), [])))
    return cells


def _first(theirs: Cells, strategy: str) -> float:
    """Return the sort key of the lines: the published AUROC, lowest where there is none."""
    values = [row["value"] for row in theirs.get((strategy, PRIMARY), []) if row["value"] is not None]
    return fmean(values) if values else float("-inf")
