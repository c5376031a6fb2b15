"""What PoolBench says about a run: answer, board, checks, tables and curves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from poolbench.contracts import Row
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.contract.page import Answer, Page, Part, Problem
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.pages.boards.rank_parts import rank_parts
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.pages.plain import is_rank, spans
from poolbench_driver.suites.poolbench.report.answer import SEPARATION, answers, best_of, headline, leaders, problems
from poolbench_driver.suites.poolbench.report.board import (
    board_table,
    build_board,
    d1_parts,
    layer_parts,
    prompted_parts,
    published_parts,
)
from poolbench_driver.suites.poolbench.report.charts import rank_diagrams, response_charts, trade_off
from poolbench_driver.suites.poolbench.report.checks import (
    audit_part,
    build_audit,
    check_part,
    concept_checks,
    coverage_part,
    scorer_parts,
    sink_parts,
)
from poolbench_driver.suites.poolbench.report.cosines import cosine_part, heat_map_part

_PLANTED = Problem(
    "A grammar wrote these passages, so that strategies can be checked against known positions: a diagnostic, never "
    "ranked together with real text. A pretrained model is measured on real text by "
    "poolbench-driver run --model smollm2-135m",
    "audit",
)
_CURVES = (
    "P(concept) of steered text by strength, the strategies that rise most; bands are 95 % intervals over openings; "
    "grey is the range of null directions."
)


def report(run: FinishedRun, page: Page) -> Page:
    """Return the page of a run."""
    details = {row["cell_id"]: json.loads(row["details"]) for row in run.rows("details")}
    rows = [{**row, "details": details.get(row["cell_id"], {})} for row in run.rows("results")]
    ranks = build_ranks(rows, SEPARATION)
    first, order, curves = rows[0], _order(rows), run.rows("curves")
    best = best_of(ranks.boards, {row["metric"] for row in rows})
    board = build_board(rows, order, best)
    concepts = sorted({row["concept"] for row in rows if row["metric"] == SEPARATION and row["concept"]})
    audit = build_audit(run.rows("audit"), concepts)
    steered_layer = next((row["layer"] for row in rows if row["metric"].startswith("d2.")), None)
    is_steered = steered_layer is not None
    # Texts of users have no name but that of their concept.
    data = ", ".join(concepts) if first["dataset"] == "own" else first["dataset"]
    return replace(
        page,
        subject=f"{first['model']} on {data}, budget {first['budget']}",
        answer=Answer(spans(headline(best), order), list(answers(best))),
        board=board_table(rows, board, ranks),
        problems=[
            *([_PLANTED] if first["dataset"] == "planted" else []),
            *problems(audit, rows, curves),
            *(problem for problem in page.problems if problem.anchor != "nulls"),  # those with a reason of their own
        ],
        picture=trade_off(board),
        parts=[
            audit_part(audit),
            *d1_parts(rows, order),
            *rank_parts(ranks, rank_diagrams(ranks.boards)),
            *layer_parts(rows),
            heat_map_part(rows, order),
            cosine_part(run.rows("cosines") if "cosines" in run.tables else None, steered_layer),
            *([Part("curves", "Response curves", response_charts(curves), "Curves", _CURVES)] if is_steered else []),
            *prompted_parts(rows),
            *published_parts(run.rows("published"), rows, order),
            check_part(concept_checks(rows, leaders(rows)), is_steered),
            coverage_part(rows, order),
            *sink_parts(rows),
            *scorer_parts(rows),
        ],
    )


def _order(rows: Iterable[Row]) -> list[str]:
    """Return strategies by mean rank on D1, those without a rank last in registry order."""
    ranks = {row["strategy"]: row["value"] for row in rows if is_rank(row, SEPARATION) and row["value"] is not None}
    registry = [spec.id for spec in STRATEGIES.all()]
    present = {row["strategy"] for row in rows if row["strategy"]}
    strategies = [name for name in registry if name in present] + sorted(present - set(registry))
    return sorted(strategies, key=lambda name: ranks.get(name, float("inf")))
