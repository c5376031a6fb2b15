"""What each strategy reaches: the board of the first screen, and means over concepts and layers in detail."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench_driver.config import ALONG
from poolbench_driver.contract.page import Cell, Column, Heads, Line, Part, Table
from poolbench_driver.contract.vega import COLOURS, VARIABLES
from poolbench_driver.pages.boards.agreement import layer_agreements
from poolbench_driver.pages.boards.ranks import RanksView, rank_text, strategy_families
from poolbench_driver.pages.drawing import CROSS
from poolbench_driver.pages.plain import entrant_cell, entrant_path, figure_path, is_rank, number
from poolbench_driver.pages.text import interval
from poolbench_driver.suites.poolbench.metrics import BOARD
from poolbench_driver.suites.poolbench.report.answer import GAIN, QUESTIONS, SEPARATION, Best

#: Rows by strategy and column.
Cells = Mapping[tuple[str, str], list[Row]]


def mean_cell(rows: Iterable[Row], digits: int = 3) -> Cell:
    """Return the mean of the values that are not null, and how many of the rows have a value.

    Without any value, return the most frequent status. A single value keeps its own interval. The interval of a mean is
    from a bootstrap over concepts. A mean over one concept has no interval, because layers are not replicates.
    """
    cells = list(rows)
    measured, opens = [row for row in cells if row["value"] is not None], mean_path(cells)
    if not measured:
        return Cell(Counter(row["status"] for row in cells).most_common(1)[0][0], opens=opens) if cells else Cell()
    mean = fmean(row["value"] for row in measured)
    share = "" if len(measured) == len(cells) else f" ({len(measured)}/{len(cells)})"
    cell = Cell(f"{mean:z.{digits}f}{share}", mean, opens=opens)
    if len(measured) == 1:
        return replace(cell, ci_low=measured[0].get("ci_low"), ci_high=measured[0].get("ci_high"))
    concepts = np.array([str(row["concept"]) for row in measured])
    if len(set(concepts)) == 1:
        return cell
    samples = group_mean_resamples(np.array([[row["value"]] for row in measured]), concepts)[:, 0]
    low, high = percentile_interval(samples) or (None, None)
    return replace(cell, ci_low=low, ci_high=high)


def mean_path(rows: Sequence[Row]) -> str:
    """Return the address to which a mean links.

    A mean of one row links to this figure, and a mean of several corrected rows to all figures of the strategy. For any
    other mean, return "".
    """
    if len(rows) > 1 and rows[0].get("protocol") == "corrected":
        return entrant_path(rows[0]["strategy"])
    return figure_path(rows[0]) if len(rows) == 1 else ""


def by_strategy(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Group rows by strategy and metric. Rows without a strategy are left out."""
    return grouped(((row["strategy"], row["metric"]), row) for row in rows if row["strategy"])


PRIMARY = "d1.auroc"
#: Columns before those of the directions, with their decimals.
D1_METRICS = {
    PRIMARY: 3,
    "d1.auroc_test": 3,
    "d1.auroc_nested": 3,
    "d1.auroc_test_nested": 3,
    "d1.seed_spread": 4,
    "d1.mlp_gain": 3,
}
FAMILY = "d1.direction."
#: The order of docs/metrics.md; directions that others registered follow by name.
DIRECTIONS = ("C1", "C2", "C3", "C4", "C5", "LDA", "C1_centred")


def d1_parts(rows: Iterable[Row], order: Sequence[str]) -> Iterator[Part]:
    """Yield the part with D1 in detail, if the run measured D1."""
    note = (
        "Means over concepts and layers: AUROC of the probe out of fold and on the test split; nested, where the "
        "training folds chose the layer; the standard deviation over the seeds of the folds; how much a "
        "hidden layer adds; and the out-of-fold AUROC of the projection on each direction. A word in place of a number "
        "is why there is none; numbers in brackets are how many of the cells have one."
    )
    if (table := build_d1(rows, order)) is not None:
        heading = "D1 in detail, means over concepts and layers"
        yield Part("d1", heading, [table], note=note, is_folded=True)


def build_d1(rows: Iterable[Row], order: Sequence[str]) -> Table | None:
    """Return the table of D1 with strategies in `order`, or None if the run did not measure D1."""
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
    """Return the mean of a metric, or the most frequent status if there is no value.

    If a strategy has no rows of the metric and `d1.auroc` has no value either, return the status of `d1.auroc`.
    """
    rows = cells.get((strategy, metric))
    if rows is None:
        whole = cells[strategy, PRIMARY]
        return Cell() if any(row["value"] is not None for row in whole) else mean_cell(whole)
    return mean_cell(rows, D1_METRICS.get(metric, 3))


def _notes(cells: Cells, metrics: Sequence[str]) -> list[str]:
    """Return a note for each column whose layers differ from the layers of `d1.auroc`."""
    layers = {
        metric: sorted({row["layer"] for (_, of), rows in cells.items() if of == metric for row in rows} - {None})
        for metric in metrics
    }
    return [
        f"{metric.removeprefix(FAMILY)}: layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))} only"
        for metric, numbers in layers.items()
        if numbers and numbers != layers[PRIMARY]
    ]


def layer_parts(rows: Iterable[Row]) -> Iterator[Part]:
    """Yield how far layers agree on each concept, if the run measured several."""
    agreements = layer_agreements(rows, PRIMARY)
    if not agreements:
        return
    lines = [
        Line.of(
            agreement.concept,
            Cell("too few") if agreement.value is None else number(agreement.value, "z.3f"),
            str(agreement.num_strategies),
            ", ".join(map(str, agreement.layers)),
        )
        for agreement in agreements
    ]
    measured = [agreement.value for agreement in agreements if agreement.value is not None]
    mean = f" Their mean is {fmean(measured):z.3f}." if measured else ""
    note = (
        "Intraclass correlation ICC(2,1) of `d1.auroc`, with strategies as targets and layers as raters: 1 if each "
        f"strategy has the same AUROC at all layers.{mean} Layers are not replicates: each is a function of the one "
        "before, on the same passages and folds, so they agree without being further evidence. No interval of this "
        "report is narrower for more layers."
    )
    heads: Heads = ["concept", "ICC(2,1)", "strategies", Column("layers", is_text=True)]
    yield Part("layers", "Agreement of layers", [Table.of(heads, lines)], note=note, is_folded=True)


def prompted_parts(rows: Sequence[Row]) -> Iterator[Part]:
    """Yield a table of prompting beside the best steering of each concept, if the run measured prompting."""
    prompted = [row for row in rows if row["metric"] == "d2.prompted"]
    if not prompted:
        return
    gains = grouped(
        (row["concept"], row) for row in rows if row["metric"] == "d2.best_gain" and row["value"] is not None
    )
    lines = []
    for row in prompted:
        best = max(gains.get(row["concept"], ()), key=lambda gain: gain["value"], default=None)
        steered = [Cell(), Cell()] if best is None else [Cell(best["strategy"]), mean_cell([best])]
        lines.append(
            Line.of(row["concept"], mean_cell([row]), Cell(interval((row["ci_low"], row["ci_high"]), "+.2f")), *steered)
        )
    columns = [Column(head) for head in ("concept", "prompted", "95 % interval", "strategy", "steered")]
    note = (
        "Prompted: mean score of replies of the chat model that was asked for the concept, minus that of the same chat "
        "without the concept's instruction. Steered: the highest d2.best_gain of the strategies, from which the name "
        "of the best one is chosen, so that it is somewhat too high."
    )
    yield Part("prompted", "Prompting as a baseline", [Table(columns, lines, style="dense")], note=note)


PUBLISHED_METRICS = ("d1.auroc", "d2.scp", "d2.scp_1", "d3.ld", "d3.lc")
#: By metric the SCPs of its published columns; an empty text where it has none.
Readings = dict[str, list[str]]


def published_parts(published: Iterable[Row], rows: Sequence[Row], order: Sequence[str]) -> Iterator[Part]:
    """Yield a table of published beside corrected means, if the run has published rows."""
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


def build_published(published: Iterable[Row], rows: Iterable[Row], order: Sequence[str]) -> Table | None:
    """Return a table of the metrics that have both published and corrected rows, or None if there is no such metric.

    Args:
        published: Rows of `published.parquet`.
        rows: Result rows.
        order: Strategies in the order of the page. It decides between strategies with equal published AUROC.
    """
    corrected = by_strategy(row for row in rows if row["metric"] in PUBLISHED_METRICS)
    theirs = by_strategy(published)
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
    """Return the published columns of each metric. D3 has one column for each definition of SCP."""
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
    """Return the sort key of a strategy: its mean published AUROC, or -infinity without a value."""
    values = [row["value"] for row in theirs.get((strategy, PRIMARY), []) if row["value"] is not None]
    return fmean(values) if values else float("-inf")


#: Colour, shape and sign of each family; colour alone says nothing.
_FAMILIES = {
    "position": (COLOURS[1], "circle", "●"),
    "uniform": (COLOURS[0], "square", "■"),
    "window": (COLOURS[2], "triangle-up", "▲"),
    "saliency": (COLOURS[3], "diamond", "◆"),
    "linguistic": (COLOURS[4], CROSS, "✖"),
    "": (COLOURS[5], "cross", "✚"),  # not registered here
}
#: Colour and shape of each family in pictures.
FAMILY_LOOKS = {name: (colour, shape) for name, (colour, shape, _) in _FAMILIES.items()}
#: Sign and colour variable of each family, for the page's text.
FAMILY_SIGNS = {name: (sign, VARIABLES[colour]) for name, (colour, _, sign) in _FAMILIES.items()}


@dataclass(frozen=True)
class BoardEntrant:
    """A strategy on the board."""

    strategy: str
    family: str  # empty where the strategy is not registered here
    figures: Mapping[str, Cell]  # by metric, where it has a value: means with their intervals
    tied: bool  # whether it is the best strategy of the board, or the best one does not beat it
    reason: str  # why it has no D1


@dataclass(frozen=True)
class StrategyBoard:
    """All strategies in the order of the page, and the best strategy of each metric that the answer names."""

    entrants: Sequence[BoardEntrant]
    best: Mapping[str, str]


def build_board(rows: Iterable[Row], order: Sequence[str], found: Mapping[str, Best | None]) -> StrategyBoard:
    """Return the board of a run, with strategies in `order` and the best strategies `found` by purpose."""
    cells, families = by_strategy(row for row in rows if row["metric"] in QUESTIONS), strategy_families(order)
    best = {metric: of for metric, purpose in QUESTIONS.items() if (of := found.get(purpose)) is not None}
    leading = best.get(SEPARATION)
    tied = set() if leading is None or leading.unsure or leading.limit else {leading.strategy, *leading.tied}
    entrants = []
    for name in order:
        means = {metric: mean_cell(cells.get((name, metric), ())) for metric in QUESTIONS}
        figures = {metric: mean for metric, mean in means.items() if mean.value is not None}
        shown_by = GAIN if ALONG in name else SEPARATION  # what steers along a further direction has no D1 of its own
        reason = "" if shown_by in figures else _reason(cells.get((name, shown_by), ()))
        entrants.append(BoardEntrant(name, families.get(name, ""), figures, name in tied, reason))
    return StrategyBoard(entrants, {metric: of.strategy for metric, of in best.items()})


def board_table(rows: Sequence[Row], board: StrategyBoard, ranks: RanksView) -> Table:
    """Return the board as a table of strategies, with their mean rank and the mean of each metric.

    A run with one concept has no ranks.
    """
    measured = {row["metric"] for row in rows}
    metrics = [metric for metric in BOARD.shown if metric in measured]
    heads = [Column(metric, has_intervals=metric in QUESTIONS) for metric in metrics]
    rank_head = [] if ranks.one_concept else ["mean rank (D1)"]
    cells = by_strategy(rows)
    by_rank = {row["strategy"]: row for row in rows if is_rank(row, SEPARATION)}
    lines = []
    for entrant in board.entrants:
        sign, colour = FAMILY_SIGNS.get(entrant.family, FAMILY_SIGNS[""])
        lines.append(
            Line.of(
                replace(entrant_cell(entrant.strategy), sign=sign, colour=colour, note=entrant.family),
                *([_rank_cell(by_rank.get(entrant.strategy))] if rank_head else []),
                *(mean_cell(cells.get((entrant.strategy, metric), ())) for metric in metrics),
                is_tied=entrant.tied,
                reason=entrant.reason,
            )
        )
    along = any(ALONG in entrant.strategy for entrant in board.entrants)
    return Table.of(["strategy", *rank_head, *heads], lines, note=_note(ranks) + (_ALONG_NOTE if along else ""))


_ALONG_NOTE = (
    f" A strategy with `{ALONG}` is steered along that construction of its vectors, the others along that of the run; "
    "its D1 is that of the strategy."
)


def _rank_cell(row: Row | None) -> Cell:
    if row is None:
        return Cell()
    ends = row["ci_low"], row["ci_high"]
    return Cell(rank_text(row["value"], ends), row["value"], *ends, opens=figure_path(row))


def _note(ranks: RanksView) -> str:
    sentences = [
        "Best D1 first; the mean value of each metric over layers. A figure of one layer has its interval."
        if ranks.one_concept
        else "Mean rank over concepts on D1 (1 is best), then the mean value of each metric over concepts and layers; "
        "with 95 % intervals from a bootstrap over concepts, drawn on a common scale."
    ]
    if not ranks.limit:
        sentences.append("The blue edge marks the best and those that Nemenyi's test (5 %) cannot tell from it.")
    return " ".join([*sentences, "A word in place of a number is why there is none."])


def _reason(rows: Iterable[Row]) -> str:
    return next(
        (f"{row['status']}: {row['reason']}" if row["reason"] else row["status"] for row in rows), "not measured"
    )
