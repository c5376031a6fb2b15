"""Tables of means over concepts and layers: D1 in detail, and the published definitions beside the corrected ones."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.contract.page import Cell, Column, Line, Part, Table

#: Rows by strategy and column.
Cells = Mapping[tuple[str, str], list[Row]]


def mean_cell(rows: Iterable[Row], digits: int = 3) -> Cell:
    """Return the mean of the values that exist, with their share of the cells; or the commonest status.

    Its limits are the mean limits of the intervals, if every value has one.
    """
    cells = list(rows)
    measured = [row for row in cells if row["value"] is not None]
    if not measured:
        return Cell(Counter(row["status"] for row in cells).most_common(1)[0][0]) if cells else Cell()
    mean = fmean(row["value"] for row in measured)
    share = "" if len(measured) == len(cells) else f" ({len(measured)}/{len(cells)})"
    cell = Cell(f"{mean:z.{digits}f}{share}", mean)
    if any(row.get("ci_low") is None for row in measured):
        return cell
    low, high = (fmean(row[name] for row in measured) for name in ("ci_low", "ci_high"))
    return replace(cell, ci_low=low, ci_high=high)


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


def d1_parts(rows: Iterable[Row], order: Sequence[str]) -> Iterator[Part]:
    """Yield D1 in detail, where the run measured it."""
    note = (
        "Means over concepts and layers: AUROC of the probe out of fold and on the test split; nested, where the "
        "training folds chose the layer; the standard deviation over the seeds of the folds; and the out-of-fold AUROC "
        "of the projection on each direction. A word in place of a number is why there is none; numbers in brackets "
        "are how many of the cells have one."
    )
    if (table := build_d1(rows, order)) is not None:
        heading = "D1 in detail, means over concepts and layers"
        yield Part("d1", heading, [table], note=note, is_folded=True)


def build_d1(rows: Iterable[Row], order: Sequence[str]) -> Table | None:
    """Return the table of D1 with strategies in `order`; None where the run did not measure it."""
    cells = by_strategy(row for row in rows if row["metric"] in D1_METRICS or row["metric"].startswith(FAMILY))
    present = {metric for _, metric in cells}
    standard = [*D1_METRICS, *(FAMILY + name for name in DIRECTIONS)]
    metrics = [metric for metric in standard if metric in present] + sorted(present - set(standard))
    if PRIMARY not in metrics:
        return None
    columns = [Column(metric.removeprefix(FAMILY)) for metric in metrics]
    lines = [
        Line.of(name, *(_mean(cells, name, metric) for metric in metrics)) for name in order if (name, PRIMARY) in cells
    ]
    return Table([Column("strategy"), *columns], lines, note="; ".join(_notes(cells, metrics)), style="dense")


def _mean(cells: Cells, strategy: str, metric: str) -> Cell:
    """Return a cell's mean, or its status; of a cell that failed as a whole, the status is in `d1.auroc`."""
    rows = cells.get((strategy, metric))
    if rows is None:
        whole = cells[strategy, PRIMARY]
        return Cell() if any(row["value"] is not None for row in whole) else mean_cell(whole)
    return mean_cell(rows, D1_METRICS.get(metric, 3))


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


def published_parts(published: Iterable[Row] | None, rows: Sequence[Row], order: Sequence[str]) -> Iterator[Part]:
    """Yield the published means beside the corrected ones, where the run has any."""
    table = build_published(published, rows, order)
    if table is None:
        return
    metrics = {column.group for column in table.columns[1:]}
    sentences = [
        "Means over concepts and layers by the reference's own definitions (`published.parquet`) beside the corrected "
        "ones that the rest of this page is about, "
        f"{'in the order of the published d1.auroc' if PRIMARY in metrics else 'strategies as above'}. The published "
        "rows are there to be compared with tables made by those definitions."
    ]
    if PRIMARY in metrics:
        sentences.append(
            "Published D1 projects on the difference of means in folds that part matched pairs (about .4 without any "
            "signal) and has nothing for strategies with a readout."
        )
    if metrics != {PRIMARY}:
        sentences.append(
            "Published D2 and D3 use a scorer whatever its gate says and have neither intervals nor null directions. "
            "Published D3 divides by the target's SCP (of either reading) however near 0 it is, so that few cells can "
            "make its mean; the corrected one is null where the target does not surely rise."
        )
    sentences.append(
        "Numbers in brackets are how many of the cells have one: where they differ, so do the cells of the two means. "
        "See *Published definitions* in docs/metrics.md."
    )
    heading = "Published definitions, never ranked, beside the corrected means"
    yield Part("published", heading, [table], "Published", " ".join(sentences))


def build_published(published: Iterable[Row] | None, rows: Iterable[Row], order: Sequence[str]) -> Table | None:
    """Return published and corrected means of the metrics that both have; None without them.

    Args:
        published: Rows of `published.parquet`; None where a run has no such table.
        rows: Result rows.
        order: Strategies as elsewhere on the page, for those with equal published AUROC.
    """
    corrected = by_strategy(row for row in rows if row["metric"] in PUBLISHED_METRICS)
    theirs = by_strategy(published or ())
    readings = _readings(theirs, {metric for _, metric in corrected})
    present = [name for name in order if any((name, metric) in theirs for metric in readings)]
    strategies = sorted(present, key=lambda name: -_first(theirs, name))
    if not strategies:
        return None
    columns = [
        Column(head, group=metric)
        for metric, scps in readings.items()
        for head in [*(f"published ({scp})" if scp else "published" for scp in scps), "corrected"]
    ]
    lines = [Line.of(name, *_line(name, readings, theirs, corrected)) for name in strategies]
    return Table([Column("strategy"), *columns], lines, style="dense")


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


def _line(name: str, readings: Readings, theirs: Cells, corrected: Cells) -> list[Cell]:
    cells: list[Cell] = []
    for metric, scps in readings.items():
        rows = theirs.get((name, metric), [])
        cells += [mean_cell(row for row in rows if _scp(row) == scp) for scp in scps]
        cells.append(mean_cell(corrected.get((name, metric), [])))
    return cells


def _first(theirs: Cells, strategy: str) -> float:
    """Return the sort key of the lines: the published AUROC, lowest where there is none."""
    values = [row["value"] for row in theirs.get((strategy, PRIMARY), []) if row["value"] is not None]
    return fmean(values) if values else float("-inf")
