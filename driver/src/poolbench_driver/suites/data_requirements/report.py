"""The page of a run: how many examples tell the configurations apart, how sure, and what stands against it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, cast

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.evidence import Evidence, OpenedCell
from poolbench_driver.contract.page import Answer, Block, Cell, Column, Heads, Line, Page, Part, Picture, Problem, Table
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.contract.vega import ACCENT, COLOURS
from poolbench_driver.pages import drawing as draw
from poolbench_driver.pages.plain import HasFigures, entrant_cell, figure, figures_by, number, spans
from poolbench_driver.pages.text import listed
from poolbench_driver.statistics.mcnemar import SUFFICIENT
from poolbench_driver.suites.data_requirements import metrics
from poolbench_driver.suites.data_requirements.config import DataRequirementsConfig
from poolbench_driver.suites.data_requirements.rows import SPLITS

#: Discordant test examples below which nothing is judged: six all one way are the fewest that are significant.
FEW_DISCORDANT = 6
#: Share of repeated subsamples with one sign below which a comparison collapses under subsampling.
STABLE = 0.95
#: Looks of the recommended number of examples, and of both bounds.
_BOUNDS = {
    "recommended": (ACCENT, "diamond"), "published bound": (COLOURS[1], "circle"), "bound": (COLOURS[2], "square"),
}  # fmt: skip
_WHICH = (
    "Use the recommendation: it comes from the power of the test. The bounds hold for any data and any probe, so that "
    "they are upper bounds that no data set meets."
)


@dataclass(frozen=True)
class SetComparison(HasFigures):
    """A comparison on one set, with its figures by metric and its rows by sample size."""

    name: str  # what sets the second configuration apart from the first
    set: str
    figures: Mapping[str, Row]
    sizes: Sequence[Row]

    @property
    def is_decided(self) -> bool:
        """Return whether the available examples give the test a power of at least .8. An unknown power counts as 0."""
        return (self.value(metrics.POWER) or 0.0) >= SUFFICIENT

    @property
    def is_measured(self) -> bool:
        """Return whether the difference at the largest size was measured. A difference of 0 counts."""
        return self.value(metrics.DIFFERENCE) is not None

    @property
    def available(self) -> int:
        """Return the examples at hand."""
        return int(self.sizes[-1]["size"])

    @property
    def parts(self) -> list[int]:
        """Return the training, development and test examples of the recommendation."""
        counts = json.loads(self.figures[metrics.RECOMMENDED]["details"])
        return [counts[name] for name in SPLITS]


@dataclass(frozen=True)
class DataView:
    """The content of the page: comparisons, the best decided first."""

    first: str
    comparisons: Sequence[SetComparison]

    def answer(self) -> str:
        """Return sentences with the recommended number of examples and its certainty."""
        measured = [comparison for comparison in self.comparisons if comparison.is_measured]
        if not measured:
            return "No comparison could be measured."
        if len(self.comparisons) == 1:
            return _sentence(measured[0], self.first)
        decided = [comparison for comparison in measured if comparison.is_decided]
        needing = [
            comparison
            for comparison in measured
            if not comparison.is_decided and comparison.value(metrics.RECOMMENDED) is not None
        ]
        hopeless = len(measured) - len(decided) - len(needing)
        sentences = [
            f"The examples at hand distinguish the two sides of {len(decided)} of {len(measured)} comparisons with a "
            f"power of {SUFFICIENT:g} or more."
        ]
        if needing:
            most = max(needing, key=lambda comparison: comparison.value(metrics.RECOMMENDED) or 0)
            some = "1 needs" if len(needing) == 1 else f"{len(needing)} need"
            sentences.append(
                f"{some} more, at most {most.value(metrics.RECOMMENDED):,.0f} examples ({most.name}, {most.set})."
            )
        if hopeless:
            sentences.append(f"{hopeless} cannot be distinguished at any size at hand.")
        return " ".join(sentences)


def _sentence(comparison: SetComparison, first: str) -> str:
    """Return the answer of a run with one comparison on one set."""
    recommended, power = comparison.value(metrics.RECOMMENDED), comparison.value(metrics.POWER)
    if recommended is None:
        return (
            f"{comparison.name} and {first} cannot be distinguished on {comparison.set} at any size at hand "
            f"({comparison.available:,} examples, power {power:.2f})."
        )
    train, dev, test = comparison.parts
    at_hand = f"the {comparison.available:,} at hand have a power of {power:.2f}"
    splits = f"{train:,} training, {dev:,} development and {test:,} test"
    return (
        f"Take {recommended:,.0f} examples of {comparison.set} ({splits}): they distinguish {comparison.name} from "
        f"{first} with a power of {SUFFICIENT:g}; {at_hand}."
    )


def report(run: FinishedRun, page: Page) -> Page:
    """Return the page of a run."""
    view, config = view_of(run), cast(DataRequirementsConfig, run.config)
    folds = f"{config.folds} folds in rotation" if config.folds > 1 else "one split"
    seeds = f"{len(config.seeds)} seeds" if len(config.seeds) > 1 else "one seed"
    method = (
        f"Both sides of a comparison are probed on the same samples, with {folds} under {seeds}. Power is the "
        "probability that McNemar's exact test of one test fold finds a significant difference of the right sign, as "
        "the mean over seeds."
    )
    drawn = next((comparison for comparison in view.comparisons if comparison.is_measured), None)
    names = [view.first, *(comparison.name for comparison in view.comparisons)]
    pictured = [] if drawn is None else [comparison for comparison in view.comparisons if comparison.name == drawn.name]
    return replace(
        page,
        subject=f"{page.subject}: {view.first}, compared",
        answer=Answer(spans(view.answer(), names), [_WHICH, method]),
        board=_board(view),
        problems=[*(Problem(line, "sizes") for line in problems(view)), *page.problems],
        picture=_picture(pictured, view.first) if pictured else None,
        parts=[
            _needs(view),
            *_pictures(view, drawn),
            *_theory(run, view),
            sizes_part(view.comparisons),
            *_published(run, view),
        ],
    )


def view_of(run: FinishedRun) -> DataView:
    """Read the tables of a run."""
    first = run.rows("comparisons")[0]["first"]
    details = {row["cell_id"]: row["details"] for row in run.rows("details")}
    rows = [
        {**row, "details": details.get(row["cell_id"], "{}")}
        for row in run.rows("results")
        if row["metric"].startswith("data.")
    ]
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in run.rows("sizes"):
        lines.setdefault((row["entrant"], row["task"]), []).append(row)
    by_comparison = figures_by(rows, "entrant", "task")
    comparisons = [
        SetComparison(name, of_set, by_metric, lines[name, of_set])
        for (name, of_set), by_metric in by_comparison.items()
    ]
    comparisons.sort(key=lambda comparison: -(comparison.value(metrics.POWER) or 0.0))
    return DataView(first, comparisons)


def problems(view: DataView) -> Iterator[str]:
    """Yield a line for each thing that limits the answer: nulls, and collapsed, reversed or hardly different pairs."""
    nulls: dict[str, list[str]] = {}
    collapsed, reversed_signs, alike, unstable = list[str](), list[str](), list[str](), list[str]()
    for comparison in view.comparisons:
        at = f"{comparison.name} on {comparison.set}"
        for line in comparison.sizes:
            if line["difference"] is None:
                nulls.setdefault(f"{line['status']}: {line['reason']}", []).append(f"{at} at {line['size']:,}")
        measured = [line for line in comparison.sizes if line["difference"] is not None]
        if not comparison.is_measured or not measured:
            continue
        if comparison.figures[metrics.RECOMMENDED]["status"] == Status.COLLAPSED:
            collapsed.append(at)
        difference, largest = comparison.value(metrics.DIFFERENCE) or 0.0, measured[-1]
        if any(line["difference"] * difference < 0 for line in measured):
            reversed_signs.append(at)
        if (largest["p01"] + largest["p10"]) * largest["num_test"] < FEW_DISCORDANT:
            alike.append(at)
        if (same_sign := largest.get("same_sign")) is not None and same_sign < STABLE:
            unstable.append(at)
    for reason, places in nulls.items():
        yield f"not compared, {reason}: {listed(places)}"
    for places, what in (
        (collapsed, f"collapsed (the interval holds 0, and the power is below {SUFFICIENT:g} with all examples)"),
        (reversed_signs, "the sign is another one at smaller sizes"),
        (unstable, f"the sign is another one in over {1 - STABLE:.0%} of repeated subsamples of half of the examples"),
        (alike, f"fewer than {FEW_DISCORDANT} examples of a test fold are discordant, so that none decides"),
    ):
        if places:
            yield f"{len(places)} of {len(view.comparisons)} comparisons: {what}: {listed(places)}"


def _board(view: DataView) -> Table:
    heads: Heads = [
        f"beside {view.first}", Column("set", is_text=True), Column("difference", has_intervals=True),
        "power (test)", "recommended", "test for .8", "type-M", "type-S", "bound", "published",
    ]  # fmt: skip
    lines = [
        Line.of(
            entrant_cell(comparison.name),
            comparison.set,
            figure(comparison.figures[metrics.DIFFERENCE], "+.3f"),
            _power(comparison.figures[metrics.POWER]),
            *(
                figure(comparison.figures[metric], spec)
                for metric, spec in (
                    (metrics.RECOMMENDED, ",.0f"),
                    (metrics.TEST_SIZE, ",.0f"),
                    (metrics.TYPE_M, ".2f"),
                    (metrics.TYPE_S, ".2g"),
                )
            ),
            *(_in_short(comparison.figures[metric]) for metric in (metrics.BOUND, metrics.PUBLISHED)),
            is_tied=comparison.is_decided,
        )
        for comparison in view.comparisons
    ]
    note = (
        "Difference of accuracies, second minus first, at the largest size, with 95 % interval over folds. Power is "
        "that of the test examples of one fold, whose number stands in parentheses. Recommended counts the examples of "
        "all splits, the two bounds (ours and the published one) training examples alone, in thousands (k) or millions "
        "(M). The blue edge marks comparisons that the examples at hand decide. A word in place of a number is why "
        "there is none."
    )
    return Table.of(heads, lines, note=note)


def _power(row: Row) -> Cell:
    """Return the power with the number of test examples that it is of; or why there is none."""
    cell = figure(row, ".2f")
    return cell if row["value"] is None else replace(cell, text=f"{cell.text} ({row['n']:,})")


def _in_short(row: Row) -> Cell:
    """Return a large number in thousands or millions; or why there is none."""
    cell, value = figure(row, ",.0f"), row["value"]
    if value is None or value < 1e4:
        return cell
    unit, sign = (1e6, "M") if value >= 1e6 else (1e3, "k")
    return replace(cell, text=f"{value / unit:,.{0 if value >= 10 * unit else 1}f} {sign}")


def _picture(comparisons: Sequence[SetComparison], beside: str) -> Picture:
    """Return differences and powers by size of one comparison, a line for each set, with the recommendations."""
    drawn = comparisons[: len(COLOURS)]
    differences, powers, needed = list[draw.Datum](), list[draw.Datum](), list[draw.Datum]()
    for place, comparison in enumerate(drawn):
        for line in comparison.sizes:
            if line["difference"] is None:
                continue
            at = {"x": line["size"] * 1.03 ** (place - (len(drawn) - 1) / 2), "series": comparison.set}
            where = f"{comparison.set}, {line['size']:,} examples"
            differences.append(
                {**at, "y": line["difference"], "low": line["ci_low"], "high": line["ci_high"],
                 "says": f"{where}: difference {line['difference']:+.3f}"}
            )  # fmt: skip
            powers.append({**at, "y": line["power"], "says": f"{where}: power {line['power']:.2f}"})
        if (recommended := comparison.value(metrics.RECOMMENDED)) is not None:
            says = f"{comparison.set}: {recommended:,.0f} examples recommended"
            needed.append({"x": recommended, "y": SUFFICIENT, "series": comparison.set, "says": says})
    common: dict[str, Any] = {"width": draw.WIDTH / 2 - 45, "has_legend": len(drawn) > 1}
    common["looks"] = draw.looks_of(comparison.set for comparison in drawn)
    size = draw.number_axis("examples of all splits", scale="log")
    left = [draw.level("y", 0, (1, 2)), draw.trends(differences), draw.points(differences, 30)]
    marked: Any = {"stroke": {"value": ACCENT}, "strokeWidth": {"value": 1.5}}
    right = [
        draw.level("y", SUFFICIENT),
        draw.trends(powers),
        draw.points(powers, 30),
        draw.points(needed, 90, **marked),
    ]
    return draw.picture(
        "Difference and power by number of examples",
        draw.chart(left, size, draw.number_axis("difference of accuracies"), 200, **common),
        draw.chart(right, size, draw.number_axis("power", (0, 1.03)), 200, **common),
        captions=[
            f"{drawn[0].name} minus {beside}: difference of accuracies by size, with 95 % intervals (left), and power "
            "(right)",
            "dashed: a power of .8; large, with an edge: the recommended number of examples",
        ],
    )


def _pictures(view: DataView, first: SetComparison | None) -> Iterator[Part]:
    """Yield the pictures of the other comparisons."""
    others: dict[str, list[SetComparison]] = {}
    for comparison in view.comparisons:
        if comparison.is_measured and (first is None or comparison.name != first.name):
            others.setdefault(comparison.name, []).append(comparison)
    if others:
        yield Part(
            "pictures", "The other comparisons", [_picture(group, view.first) for group in others.values()], "Pictures"
        )


def _needs(view: DataView) -> Part:
    """Return how many examples of each split are recommended, beside the bounds."""
    lines = [
        Line.of(
            comparison.name,
            comparison.set,
            *(number(count, ",d") for count in comparison.parts),
            figure(comparison.figures[metrics.RECOMMENDED], ",.0f"),
            figure(comparison.figures[metrics.BOUND], ",.0f"),
            figure(comparison.figures[metrics.MARGIN], ",.0f"),
        )
        for comparison in view.comparisons
        if comparison.value(metrics.RECOMMENDED) is not None
    ]
    heads: Heads = [
        "comparison", Column("set", is_text=True), "training", "development", "test", "in all", "bound (training)",
        "bound / recommended",
    ]  # fmt: skip
    note = (
        "What a power of .8 needs, in the shares of a fold, and how many times as many training examples the bound "
        "asks for."
    )
    blocks: list[Block] = [Table.of(heads, lines)]
    if needed := [comparison for comparison in view.comparisons if comparison.value(metrics.MARGIN) is not None]:
        blocks.append(margins(needed))
    return Part("needs", "What to collect", blocks, "What to collect", note)


def margins(comparisons: Sequence[SetComparison]) -> Picture:
    """Return the recommended training examples beside both bounds, a line for each comparison and set."""
    bounds, ranges = list[draw.Datum](), list[draw.Datum]()
    for comparison in comparisons:
        bound, name = comparison.value(metrics.BOUND) or 0.0, f"{comparison.name}, {comparison.set}"
        needed = bound / (comparison.value(metrics.MARGIN) or 1.0)
        ranges.append({"x": needed, "x2": bound, "y": name, "y2": name})
        for series, value in zip(_BOUNDS, (needed, comparison.value(metrics.PUBLISHED), bound), strict=True):
            if value is not None:
                bounds.append({"x": value, "y": name, "series": series, "says": f"{name}: {series} {value:,.0f}"})
    drawn = draw.chart(
        [draw.segments(ranges), draw.points(bounds)],
        draw.number_axis("training examples", scale="log"),
        draw.name_axis(dict.fromkeys(row["y"] for row in ranges)),
        50 + 22 * len(ranges),
        _BOUNDS,
    )
    caption = "training examples that are recommended, and those of the two bounds, which no data set needs"
    return draw.picture("Recommended training examples beside the bounds", drawn, captions=[caption])


def _theory(run: FinishedRun, view: DataView) -> Iterator[Part]:
    """Yield the accuracies of each configuration by size, with their spread over seeds and the bound of theory."""
    names = {row["entrant"]: (row["first"], row["second"]) for row in run.rows("comparisons")}
    sizes = [row for comparison in view.comparisons for row in comparison.sizes if row.get("accuracy_bound")]
    bounds: dict[tuple[str, str, int], tuple[float, float]] = {}
    for row in sorted(sizes, key=lambda row: row["accuracy_bound"]):  # that of a comparison is of its larger probe
        for name in names[row["entrant"]]:
            bounds.setdefault((name, row["task"], row["size"]), (row["num_train"], row["accuracy_bound"]))
    if not bounds:  # a run of an earlier version
        return
    keys = ["configuration", "task", "size", "seed"]
    accuracies: dict[tuple[str, str, int], list[float]] = {}
    for row in run.tables["answers"].group_by(keys).aggregate([("right", "mean")]).to_pylist():
        place = row["configuration"], row["task"], row["size"]
        if row["right_mean"] is not None and place in bounds:
            accuracies.setdefault(place, []).append(row["right_mean"])
    lines, seeds, theory = list[Line](), list[draw.Datum](), list[draw.Datum]()
    for (name, of_set, size), values in sorted(accuracies.items()):
        num_train, bound = bounds[name, of_set, size]
        mean, spread = fmean(values), 3 * stdev(values) if len(values) > 1 else None
        is_inside = all(abs(value - mean) <= bound for value in values)
        lines.append(
            Line.of(
                name, of_set, number(num_train, ",.0f"), number(mean), number(spread), number(bound),
                "yes" if is_inside else "no",
            )
        )  # fmt: skip
        if name == view.first:
            says = f"{of_set}, {num_train:,.0f} training examples: "
            spot = {"x": num_train, "series": of_set}
            seeds += [{**spot, "y": value, "says": f"{says}accuracy {value:.3f}"} for value in values]
            theory.append({**spot, "y": mean, "low": max(0.0, mean - bound), "high": min(1.0, mean + bound)})
    axes = draw.number_axis("training examples", scale="log"), draw.number_axis("accuracy")
    layers = [draw.bands(theory), draw.trends(theory), draw.points(seeds, 20)]
    drawn = draw.chart(layers, *axes, 220, draw.looks_of(dict.fromkeys(row["series"] for row in theory)))
    heads: Heads = [
        "configuration", Column("set", is_text=True), "training", "accuracy", "3 deviations over seeds", "bound",
        "all seeds inside",
    ]  # fmt: skip
    note = (
        "Figures 2 and 7 of the paper: the accuracies of the seeds lie around their mean within what the published "
        "bound allows for this number of training examples. The picture has the first configuration; points are seeds."
    )
    blocks: list[Block] = [draw.picture("Accuracy and bound by training examples", drawn), Table.of(heads, lines)]
    yield Part("theory", "Theory against experiment", blocks, "Theory", note, is_folded=True)


def _published(run: FinishedRun, view: DataView) -> Iterator[Part]:
    """Yield the board with the probes of the reference."""
    by_comparison = figures_by(run.rows("published"), "entrant", "task")
    comparisons = [SetComparison(name, of_set, figures, ()) for (name, of_set), figures in by_comparison.items()]
    note = (
        "The probes of the reference: Adam, the best of five rates and four batches on development, 50 epochs at most, "
        "of which five may have no lower loss. Samples, folds and test are ours (published.parquet)."
    )
    if comparisons:
        board = _board(DataView(view.first, comparisons))
        yield Part("published", "With the published probes, never ranked with ours", [board], "Published", note)


def sizes_part(comparisons: Sequence[SetComparison]) -> Part:
    """Return every size of some comparisons."""
    heads: Heads = [
        "comparison", Column("set", is_text=True), "examples", "training", "first", "second",
        Column("difference", has_intervals=True), "only second", "only first", "power", "type-M", "type-S", "same sign",
        "published bound",
    ]  # fmt: skip
    lines = []
    for comparison in comparisons:
        for row in comparison.sizes:
            numbers = (
                number(row.get(name), spec)  # the last two are not in runs of earlier versions
                for name, spec in (
                    ("p01", ".3f"), ("p10", ".3f"), ("power", ".2f"), ("type_m", ".2f"), ("type_s", ".2g"),
                    ("same_sign", ".3f"), ("bound_published", ",d"),
                )
            )  # fmt: skip
            lines.append(
                Line.of(
                    comparison.name,
                    comparison.set,
                    number(row["size"], ",d"),
                    number(row["num_train"], ",.0f"),
                    number(row["accuracy_first"]),
                    number(row["accuracy_second"]),
                    figure({**row, "value": row["difference"]}, "+.3f"),
                    *numbers,
                )
            )
    note = (
        "Accuracy of both sides, and shares of test examples that only one of them has right (sizes.parquet). Same "
        "sign: share of 1,000 subsamples of half of the examples whose difference has the sign of all. Published "
        "bound: training examples that the bound asks for, by the difference at this size."
    )
    return Part("sizes", "By size", [Table.of(heads, lines)], "By size", note, is_folded=True)


def _behind(cell: OpenedCell) -> Iterator[Part]:
    """Yield the sizes of a comparison on a set."""
    name, set_name = cell.row["entrant"], cell.row["task"]
    if sizes := cell.rows("sizes", entrant=name, task=set_name):
        yield replace(sizes_part([SetComparison(name, set_name, {}, sizes)]), is_folded=False)


BEHIND = Evidence(_behind)
