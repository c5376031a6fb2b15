"""The arithmetic of a published table: its means, ranks and tests again from its own cells."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from recipes.published.significance import significance_checks
from recipes.published.stated import Check, Disagreement, Mean, Meaning, Stated, stated

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.published import PublishedTable
from poolbench_driver.pages.boards.ranking import RankBoard, rank_board
from poolbench_driver.pages.text import table
from poolbench_driver.suites.poolbench.published_table import published_table

#: Half a unit of the last decimal of all means, with the rounding of a sum of floats.
ROUNDING = 0.5e-5 + 1e-9
#: Below this gain of the target the source has no D3.
MIN_GAIN = 0.01


def check_table(table: PublishedTable) -> list[Check]:
    """Return every check of the published table, in the order in which they build on one another."""
    source = stated()
    return [
        _bounds(table),
        _means(table, source.means, "concepts", lambda cell: cell.strategy),
        _means(table, source.means, "strategies", lambda cell: cell.concept),
        _nulls(table),
        _model_means(source),
        _leaderboard_ranks(source),
        *significance_checks(table, source.significance),
    ]


def checks_markdown() -> str:
    """Return the checks of the published table, and every disagreement, as text."""
    checks = check_table(published_table())
    tables = [rows for rows in (check_rows(checks), disagreement_rows(checks)) if rows]
    return "\n\n".join(table(list(rows[0]), ([str(cell) for cell in row.values()] for row in rows)) for rows in tables)


def check_rows(checks: Iterable[Check]) -> list[Row]:
    """Return one row per check."""
    return [
        {
            "check": check.name,
            "compared": check.num_compared,
            "disagree": len(check.disagreements),
            "a disagreement means": check.meaning,
        }
        for check in checks
    ]


def disagreement_rows(checks: Iterable[Check]) -> list[Row]:
    """Return one row per disagreement, with both figures."""
    return [
        {"figure": figure.where, "theirs": shown(figure.theirs), "recomputed": shown(figure.ours), "why": figure.why}
        for check in checks
        for figure in check.disagreements
    ]


def shown(value: Any) -> str:
    """Return a figure, or several, with five decimals, and a small p-value with two digits."""
    if value is None:
        return "null"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " and ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < value < 0.1 else f"{value:.5f}".rstrip("0").rstrip(".")
    return str(value)


def d1_board(table: PublishedTable) -> RankBoard:
    """Return our ranking of the table's D1: concepts are the blocks, after a mean over the models."""
    rows = [
        {"strategy": c.strategy, "concept": c.concept, "model": c.model, "metric": "d1.auroc"}
        | {"value": c.value, "status": Status.OK}
        for c in table.cells
        if c.column == "D1_auroc"
    ]
    board = rank_board(rows, "d1.auroc")
    assert board is not None  # every block has every strategy
    return board


def same_cells(table: PublishedTable) -> list[tuple[str, str, str]]:
    """Return model and two strategies wherever all figures of two strategies are equal."""
    figures = defaultdict(list)
    for cell in table.cells:
        figures[cell.model, cell.strategy].append(cell.value)
    names = [strategy.id for strategy in table.strategies]
    return [
        (model.name, first, second)
        for model in table.models
        for first, second in combinations(names, 2)
        if figures[model.name, first] == figures[model.name, second]
    ]


def _bounds(table: PublishedTable) -> Check:
    limits = {column.id: (column.low, column.high) for column in table.columns}
    disagreements, compared = [], 0
    for cell in table.cells:
        low, high = limits[cell.column]
        if cell.value is None or (low is None and high is None):
            continue
        compared += 1
        if not (-math.inf if low is None else low) <= cell.value <= (math.inf if high is None else high):
            disagreements.append(
                Disagreement(f"{cell.model} {cell.strategy} {cell.concept} {cell.column}", cell.value, (low, high))
            )
    return Check("every figure lies in its bounds", compared, tuple(disagreements), meaning=Meaning.COPY)


def _means(table: PublishedTable, means: Iterable[Mean], over: str, of: Callable[..., str]) -> Check:
    values = defaultdict(list)
    for cell in table.cells:
        if cell.value is not None:
            values[cell.model, of(cell), cell.column].append(cell.value)
    theirs = [mean for mean in means if mean.over == over]
    pairs = [(f"{m.model} {m.of} {m.column}", m.value, _mean(values[m.model, m.of, m.column])) for m in theirs]
    return Check(f"means over the {over}", len(pairs), tuple(_apart(pairs)), meaning=Meaning.COPY)


def _model_means(source: Stated) -> Check:
    values = defaultdict(list)
    for mean in source.means:
        if mean.over == "concepts" and mean.value is not None:
            values[mean.of, mean.column].append(mean.value)
    pairs = [
        (f"{line.strategy} {column}", value, _mean(values[line.strategy, column]))
        for line in source.leaderboard
        for column, value in line.means.items()
    ]
    return Check("means over the models", len(pairs), tuple(_apart(pairs)), meaning=Meaning.COPY)


def _nulls(table: PublishedTable) -> Check:
    disagreements, compared = [], 0
    for cell in table.cells:
        if not cell.column.startswith("D3_"):
            continue
        compared += 1
        gain = table.values[cell.model, cell.strategy, cell.concept, "D2_scp_c"]
        defined = gain is not None and abs(gain) >= MIN_GAIN
        if defined != (cell.value is not None):
            where = f"{cell.model} {cell.strategy} {cell.concept} {cell.column}"
            disagreements.append(
                Disagreement(where, cell.value, f"null exactly where |D2_scp_c| < {MIN_GAIN}; it is {gain}")
            )
    return Check("D3 is null exactly where |D2_scp_c| < .01", compared, tuple(disagreements), meaning=Meaning.COPY)


def _leaderboard_ranks(source: Stated) -> Check:
    """Compare the ranks with ours, in which equal means share their rank."""
    means = {line.strategy: line.means["D1_auroc"] for line in source.leaderboard}
    disagreements = []
    for line in source.leaderboard:
        above = sum(mean > line.means["D1_auroc"] for mean in means.values())
        equal = sum(mean == line.means["D1_auroc"] for mean in means.values())
        if (ours := above + (equal + 1) / 2) != line.rank:
            disagreements.append(
                Disagreement(f"rank of {line.strategy}", line.rank, ours, "equal means share their rank")
            )
    return Check("ranks by mean D1", len(source.leaderboard), tuple(disagreements))


def _mean(values: Iterable[float]) -> float | None:
    figures = list(values)
    return fmean(figures) if figures else None


def _apart(pairs: Iterable[tuple[str, float | None, float | None]]) -> Iterator[Disagreement]:
    for where, theirs, ours in pairs:
        if theirs is None or ours is None:
            if theirs is not ours:
                yield Disagreement(where, theirs, ours)
        elif abs(theirs - ours) > ROUNDING:
            yield Disagreement(where, theirs, ours)
