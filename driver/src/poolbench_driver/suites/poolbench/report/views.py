"""The contents of the page as plain data; the template only lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolbench.contracts import Row
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.pages.boards.ranks import RanksView, build_ranks
from poolbench_driver.suites.poolbench.metrics import BOARD
from poolbench_driver.suites.poolbench.report.answer import SEPARATION, answers, best_of, headline, leaders, problems
from poolbench_driver.suites.poolbench.report.audit import AuditView, build_audit
from poolbench_driver.suites.poolbench.report.board import Board, build_board
from poolbench_driver.suites.poolbench.report.checks import concept_checks, coverage, sinks
from poolbench_driver.suites.poolbench.report.cosines import CosinesView, build_cosines
from poolbench_driver.suites.poolbench.report.heat_maps import HEAT_MAPS, HeatMap, heat_map
from poolbench_driver.suites.poolbench.report.means import MeansTable, build_d1, build_published, by_strategy, mean_text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class View:
    """The contents of the page."""

    title: str
    planted: bool
    headline: str
    answers: list[str]
    problems: list[str]
    leaderboard: list[Row]
    board: Board
    audit: AuditView
    columns: Sequence[str]
    steered: bool
    heat_maps: list[HeatMap]
    checks: list[Row]
    coverage: list[Row]
    sinks: list[Row]
    scorers: list[Row]
    curves: list[Row]
    ranks: RanksView
    cosines: CosinesView
    d1: MeansTable | None
    published: MeansTable | None


def build_view(tables: Mapping[str, pa.Table]) -> View:
    """Read a run's tables into a view."""
    results = tables["results"].to_pylist()
    details = {row["cell_id"]: json.loads(row["details"]) for row in tables["details"].to_pylist()}
    rows = [{**row, "details": details.get(row["cell_id"], {})} for row in results]
    first = rows[0]
    order, measured = _order(rows), {row["metric"] for row in rows}
    maps = [heat_map(rows, metric, neutral, order) for metric, neutral in HEAT_MAPS]
    ranks, curves = build_ranks(rows, SEPARATION), tables["curves"].to_pylist()
    best = best_of(ranks.boards, measured)
    verdicts = build_audit(_optional(tables, "audit"), sorted(_measured(rows)))
    return View(
        title=f"PoolBench: {first['model']} on {_data(first['dataset'], rows)}, budget {first['budget']}",
        planted=first["dataset"] == "planted",
        leaderboard=_leaderboard(rows, order),
        board=build_board(rows, order, best),
        headline=headline(best),
        answers=list(answers(best)),
        problems=list(problems(verdicts, rows, curves)),
        audit=verdicts,
        columns=[metric for metric in BOARD.shown if metric in measured],
        steered=any(metric.startswith("d2.") for metric in measured),
        heat_maps=[picture for picture in maps if picture.rows],
        checks=concept_checks(rows, leaders(rows)),
        coverage=coverage(rows, order),
        sinks=sinks(rows),
        scorers=[row for row in rows if row["metric"].startswith("scorer.")],
        curves=curves,
        ranks=ranks,
        cosines=_cosines(tables, rows),
        d1=build_d1(rows, order),
        published=build_published(_optional(tables, "published"), rows, order),
    )


def _data(dataset: str, rows: Iterable[Row]) -> str:
    """Return what was measured: texts of users have no name but that of their concept."""
    return ", ".join(sorted(_measured(rows))) if dataset == "own" else dataset


def _measured(rows: Iterable[Row]) -> set[str]:
    return {row["concept"] for row in rows if row["metric"] == "d1.auroc" and row["concept"]}


def _cosines(tables: Mapping[str, pa.Table], rows: Iterable[Row]) -> CosinesView:
    """Return the table of cosines."""
    steered = next((row["layer"] for row in rows if row["metric"].startswith("d2.")), None)
    return build_cosines(_optional(tables, "cosines"), steered)


def _optional(tables: Mapping[str, pa.Table], name: str) -> list[Row] | None:
    """Return the rows of a table that not every run has."""
    return tables[name].to_pylist() if name in tables else None


def _order(rows: Iterable[Row]) -> list[str]:
    """Return strategies by mean rank on D1, those without a rank last in registry order."""
    ranks = {
        row["strategy"]: row["value"]
        for row in rows
        if row["metric"] == "rank.mean" and row["value"] is not None and _of(row) == ("d1.auroc", "all")
    }
    registry = [spec.id for spec in STRATEGIES.all()]
    present = {row["strategy"] for row in rows if row["strategy"]}
    strategies = [name for name in registry if name in present] + sorted(present - set(registry))
    return sorted(strategies, key=lambda name: ranks.get(name, float("inf")))


def _of(row: Row) -> tuple[str, str]:
    params = json.loads(row["params"])
    return params.get("of", ""), params.get("board", "")


def _leaderboard(rows: Sequence[Row], order: Sequence[str]) -> list[Row]:
    ranks = {(r["strategy"], *_of(r)): r for r in rows if r["metric"] == "rank.mean"}
    board, cells = [], by_strategy(rows)
    for name in order:
        entry: Row = {"strategy": name, "rank": ranks.get((name, "d1.auroc", "all"))}
        for metric in BOARD.shown:
            entry[metric] = mean_text(cells.get((name, metric), ()))
        board.append(entry)
    return board
