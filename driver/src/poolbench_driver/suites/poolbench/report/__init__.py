"""What PoolBench says about a run: its page, its answer, and the same figures as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.suite import Report, Section
from poolbench_driver.pages.boards.ranks import rank_text
from poolbench_driver.suites.poolbench.measures.cosines import SAME
from poolbench_driver.suites.poolbench.report.charts import family_marks, rank_diagrams, response_charts, trade_off
from poolbench_driver.suites.poolbench.report.markdown import summary, tables_markdown
from poolbench_driver.suites.poolbench.report.views import View, build_view

if TYPE_CHECKING:
    import pyarrow as pa


def report(tables: Mapping[str, pa.Table]) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    return report_of(build_view(tables))


def report_of(view: View) -> Report:
    """Return the page of a run from its view."""
    return Report(view.title, list(_sections(view)), summary(view), tables_markdown(view))


def _sections(view: View) -> Iterator[Section]:
    drawn: dict[str, Any] = {"rank_text": rank_text, "marks": family_marks(), "bars": view.board.drawn()}

    def section(name: str, label: str = "", anchor: str = "", **values: Any) -> Section:
        return Section(__name__, f"{name}.html.j2", {"view": view, **values}, anchor or name, label)

    yield section("first", picture=trade_off(view.board), **drawn)
    yield section("board", "Board", "leaderboard", **drawn)
    yield section("audit")
    if view.d1:
        yield section("d1")
    yield section("ranks", "Ranks" if view.ranks.boards else "", diagrams=rank_diagrams(view.ranks.boards), **drawn)
    yield section("maps", "Concepts")
    yield section("cosines", "Same direction", same=SAME)
    if view.steered:
        yield section("curves", "Curves", charts=response_charts(view))
    if view.published:
        yield section("published", "Published")
    yield section("checks", "Checks")
    yield section("coverage", "Coverage")
    if view.sinks:
        yield section("sinks")
    if view.scorers:
        yield section("scorers", "Scorers")
