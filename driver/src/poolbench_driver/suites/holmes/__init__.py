"""The suite Holmes: what does a representation know about language, and which pooling carries it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Answers, Description, FinishedRun, Recorded, Suite, Tables
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.metrics import BOARD, METRICS

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.contracts import Row
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.contract.evidence import Evidence
    from poolbench_driver.contract.page import Page
    from poolbench_driver.contract.source import RowSource
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope


class Holmes(Suite[HolmesConfig, "HolmesScope", "HolmesPlan"]):
    """Linguistic probing: sets of labelled texts and spans, over models, layers and pooling strategies."""

    id = "holmes"
    summary = "linguistic probing: which model, layer and pooling carry which property of language?"
    reference = "github.com/Holmes-Benchmark/holmes-evaluation"
    citation = "Waldis et al. (2024), Holmes: a benchmark to assess the linguistic competence of language models"
    dataset = "Holmes-Benchmark/holmes-evaluation"
    licence = "of each set its own, see `ls probing-sets`"
    config = HolmesConfig
    metrics = METRICS
    board = BOARD
    text_tables = ("examples",)

    def check(self, config: HolmesConfig) -> None:
        """Raise UnknownNameError, CorpusError or InputError for sets, strategies and files that are not there."""
        from poolbench_driver.suites.holmes.plan import chosen_sets, files_of, strategies_of

        chosen_sets(config)
        strategies_of(config)
        files_of(config)

    def resolve(self, config: HolmesConfig, session: Session, model: ModelInfo | None = None) -> HolmesScope:
        """Return probing sets, strategies, layers and the model, checked."""
        from poolbench_driver.suites.holmes.plan import resolve

        return resolve(config, session, model)

    def plan(self, scope: HolmesScope) -> HolmesPlan:
        """Return the plan of a scope."""
        from poolbench_driver.suites.holmes.plan import plan

        return plan(scope)

    def describe(self, plan: HolmesPlan) -> Description:
        """Return what a dry run says about a plan."""
        sets, cells = len(plan.scope.sets), len({at[1:] for at in plan.probes})
        return Description(
            [f"{sets} probing sets, {cells} entrants"], {"sets": list(plan.scope.sets), "entrants": cells}
        )

    def assemble(self, plan: HolmesPlan, source: RowSource) -> Tables:
        """Return result rows and tables from the artifacts of a plan."""
        from poolbench_driver.suites.holmes.rows import assemble

        return assemble(plan, source)

    def report(self, tables: Mapping[str, pa.Table], config: HolmesConfig) -> Page:
        """Return the page of a run from its tables."""
        from poolbench_driver.suites.holmes.report import report

        return report(tables)

    def joined(self, runs: Sequence[FinishedRun]) -> Page:
        """Return the board of several runs."""
        from poolbench_driver.suites.holmes.report import joined

        return joined(runs)

    def evidence(self) -> Evidence:
        """Return the test instances behind a figure, wrong ones first."""
        from poolbench_driver.suites.holmes.evidence import BEHIND

        return BEHIND

    def answers(self, tables: Mapping[str, pa.Table]) -> Answers:
        """Return the test instances that each entrant had right, by set; a real value is neither right nor wrong."""
        classed = {row["set"] for row in tables["sets"].to_pylist() if row["task"] == "classes"}
        right: Answers = {}
        for row in tables["predictions"].to_pylist():
            if row["set"] in classed and row["predicted"] is not None:
                by_item = right.setdefault(row["set"], {}).setdefault(row["entrant"], {})
                by_item[row["instance_id"]] = row["predicted"] == row["truth"]
        return right

    def recorded(self, source: Path) -> Recorded:
        """Return the winning rates of a table of the public leaderboard."""
        from poolbench_driver.suites.holmes.joined import read_table
        from poolbench_driver.suites.holmes.recorded import board, board_markdown

        scores = read_table(source)
        rows = board(scores)
        return Recorded(rows, board_markdown(source, scores, rows), scores.notes)

    def among_recorded(self, source: Path, joined: Sequence[FinishedRun | Path]) -> Recorded:
        """Return the same with runs of protocol `published`, or `results_holmes.csv`, on the sets in common."""
        from poolbench_driver.suites.holmes import joined as joining
        from poolbench_driver.suites.holmes.recorded import board, board_markdown

        entrants = [
            entrant
            for origin in joined
            for entrant in (
                joining.entrants_of_output(origin) if isinstance(origin, Path) else joining.entrants_of_run(origin)
            )
        ]
        table = joining.join(joining.read_table(source, joining.one_portion(entrants)), entrants)
        rows = [{**row, "joined": row["entrant"] in table.names} for row in board(table.scores)]
        return Recorded(rows, board_markdown(source, table.scores, rows, table.note), [table.note, *table.scores.notes])


SUITES.add(Holmes())
