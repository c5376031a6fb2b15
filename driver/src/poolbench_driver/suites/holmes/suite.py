"""What the suite Holmes does."""

from collections.abc import Sequence
from pathlib import Path

from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.abilities import Answers, Recorded
from poolbench_driver.contract.page import Page, Part
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Description, FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.suites.holmes import correlations, joins
from poolbench_driver.suites.holmes import plan as planning
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.evidence import BEHIND
from poolbench_driver.suites.holmes.figures import score_table
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope
from poolbench_driver.suites.holmes.recordings import board, board_markdown
from poolbench_driver.suites.holmes.report import page_of_view
from poolbench_driver.suites.holmes.rows import assemble
from poolbench_driver.suites.holmes.view import view_of, view_over


class Holmes(Suite[HolmesConfig, HolmesScope, HolmesPlan]):
    """Linguistic probing: sets of labelled texts and spans, over models, layers and pooling strategies."""

    evidence = BEHIND

    def check(self, config: HolmesConfig) -> None:
        """Raise UnknownNameError, CorpusError or InputError for sets, strategies and files that are not there."""
        planning.chosen_sets(config.sets, config.corpus.source)
        planning.strategies_of(config)
        planning.files_of(config)

    def resolve(self, config: HolmesConfig, session: Session, model: ModelInfo | None = None) -> HolmesScope:
        """Return probing sets, strategies, layers and the model, checked."""
        return planning.resolve(config, session, model)

    def plan(self, scope: HolmesScope) -> HolmesPlan:
        return planning.plan(scope)

    def describe(self, plan: HolmesPlan) -> Description:
        sets, cells = len(plan.scope.sets), len({at[1:] for at in plan.probes})
        return Description(
            [f"{sets} probing sets, {cells} entrants"], {"sets": list(plan.scope.sets), "entrants": cells}
        )

    def assemble(self, plan: HolmesPlan, source: RowSource) -> Tables:
        return assemble(plan, source)

    def report(self, run: FinishedRun, page: Page) -> Page:
        return page_of_view(view_of(run), page)

    def joined(self, runs: Sequence[FinishedRun], page: Page) -> Page:
        return page_of_view(view_over(runs), page)

    def answers(self, run: FinishedRun) -> Answers:
        """Return by set and entrant which test instances are predicted correctly, without sets of real values."""
        classed = {row["set"] for row in run.rows("sets", task="classes")}
        right: Answers = {}
        for row in run.rows("predictions"):
            if row["set"] in classed and row["predicted"] is not None:
                by_item = right.setdefault(row["set"], {}).setdefault(row["entrant"], {})
                by_item[row["instance_id"]] = row["predicted"] == row["truth"]
        return right

    def recorded(self, source: Path) -> Recorded:
        """Return the winning rates of a table of the public leaderboard."""
        scores = joins.read_table(source)
        rows = board(scores)
        return Recorded(rows, board_markdown(source, scores, rows), scores.notes)

    def beside(self, board: Sequence[FinishedRun] | Path, others: Path) -> Part:
        """Return how far the winning rates of runs, or of a recorded table, order models as other benchmarks do."""
        if isinstance(board, Path):
            scores = joins.read_table(board)
            return correlations.beside(scores, scores.models, others)
        view = view_of(board[0]) if len(board) == 1 else view_over(board)
        models = [entrant.model if entrant.is_pooled and entrant.model else "" for entrant in view.entrants]
        return correlations.beside(score_table(view), models, others)

    def among_recorded(self, source: Path, joined: Sequence[FinishedRun | Path]) -> Recorded:
        """Return the board of recorded models with other entrants added, on the sets that all have.

        The entrants come from runs of protocol `published`, or from files `results_holmes.csv`.
        """
        entrants = [
            entrant
            for origin in joined
            for entrant in (
                joins.entrants_of_output(origin) if isinstance(origin, Path) else joins.entrants_of_run(origin)
            )
        ]
        table = joins.join(joins.read_table(source, joins.one_portion(entrants)), entrants)
        rows = [{**row, "joined": row["entrant"] in table.names} for row in board(table.scores)]
        return Recorded(rows, board_markdown(source, table.scores, rows, table.note), [table.note, *table.scores.notes])
