"""The first lines of the page: what agrees with other orders of the strategies, and what sinks change."""

from collections.abc import Iterator, Sequence

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.comparison import compare_runs
from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.pages.boards.ranks import rank_agreements
from poolbench_driver.suites.poolbench.published_table import published_table

PROBING = "d1.auroc"
#: Columns of the published table that measure what a metric of ours measures, at least by its name.
PUBLISHED = {PROBING: "D1_auroc", "d2.scp": "D2_scp_c", "d3.ld": "D3_LD", "d3.lc": "D3_LC"}
#: How many ranks a strategy must move to be named.
MOVED = 2.0


def published_orders(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how our order of the strategies agrees with that of the published table, by metric."""
    table = published_table()
    ours = {strategy.id: strategy.ours for strategy in table.strategies if strategy.ours is not None}
    for metric, column in PUBLISHED.items():
        theirs = rank_board(
            [
                {"strategy": ours[cell.strategy], "concept": cell.concept, "model": cell.model, "metric": metric}
                | {"value": cell.value, "status": Status.OK if cell.value is not None else Status.TOO_FEW}
                for cell in table.cells
                if cell.column == column and cell.strategy in ours
            ],
            metric,
        )
        board = rank_board(rows, metric)
        if board is None or theirs is None:
            yield f"`{metric}`: no two strategies have a value in both."
            continue
        (agreement,) = rank_agreements({"ours": board, "published": theirs})
        yield f"`{metric}`: {_agreement(agreement.value, agreement.interval, agreement.num_strategies)}"


def _agreement(value: float | None, interval: tuple[float, float] | None, strategies: int) -> str:
    if value is None:
        return "too few strategies have a value in both."
    if interval is None:
        return f"Spearman's correlation of the mean ranks of {strategies} strategies is {value:z.2f}."
    low, high = interval
    says = "agree" if low > 0 else "disagree" if high < 0 else "neither agree nor disagree for certain"
    return (
        f"the orders of {strategies} strategies {says}: Spearman's correlation of the mean ranks is {value:z.2f} "
        f"[{low:z.2f}, {high:z.2f}]."
    )


def moved_by_sinks(excluded: Sequence[Row], included: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return what changes in D1 when sinks stay in the vectors, in words and as a table by strategy."""
    changes = compare_runs(list(map(dict, excluded)), list(map(dict, included)), metrics=[PROBING])
    values = {row["strategy"]: row for row in changes.values}
    lines = [
        [
            row["strategy"],
            f"{row['first']:.1f}",
            f"{row['second']:.1f}",
            _signed(row["change"], row["ci_low"], row["ci_high"], 1),
            *_difference(values.get(row["strategy"])),
        ]
        for row in sorted(changes.ranks, key=lambda row: (row["first"] is None, row["first"]))
        if row["status"] == Status.OK
    ]
    moved = [f"`{row['strategy']}`" for row in changes.ranks if abs(row["change"] or 0.0) >= MOVED]
    (agreement,) = changes.agreement
    sentences = [
        f"With attention sinks in the vectors, {len(moved)} of {len(lines)} strategies move by {MOVED:g} ranks or more "
        f"in D1: {', '.join(moved) or 'none'}.",
        f"With and without sinks, {_agreement(agreement['value'], agreement['interval'], agreement['num_strategies'])}",
    ]
    return sentences, lines


def _difference(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [
        f"{row['first']:.3f}", f"{row['second']:.3f}", _signed(row["difference"], row["ci_low"], row["ci_high"], 3)
    ]  # fmt: skip


def _signed(value: float, low: float | None, high: float | None, digits: int) -> str:
    interval = "" if low is None or high is None else f" [{low:+z.{digits}f}, {high:+z.{digits}f}]"
    return f"{value:+z.{digits}f}{interval}"
