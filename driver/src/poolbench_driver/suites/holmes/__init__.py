"""The suite Holmes: what does a representation know about language, and which pooling carries it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Description, MetricInfo, Recorded, Suite

if TYPE_CHECKING:
    from pathlib import Path

    from poolbench_driver.suites.holmes.plan import HolmesPlan

SCORE, RATE = "holmes.score", "holmes.winning_rate"


class Holmes(
    Suite[HolmesConfig, Any, "HolmesPlan"],
    functions={
        "resolve": "plan:resolve",
        "plan": "plan:plan",
        "assemble": "rows:assemble",
        "report": "report:report",
        "joined": "report:joined",
    },
):
    """Linguistic probing: sets of labelled texts and spans, over models, layers and pooling strategies."""

    id = "holmes"
    summary = "linguistic probing: which model, layer and pooling carry which property of language?"
    reference = "Waldis et al. (2024), Holmes: a benchmark to assess the linguistic competence of language models"
    config = HolmesConfig
    metrics = (
        MetricInfo(SCORE, "macro-F1 of a probing set, or Pearson correlation where it asks for values", True, -1, 1),
        MetricInfo(RATE, "share of (probing set, other entrant) pairs won, ties one half", True, 0, 1, variants=True),
    )
    board = BoardSpec(
        ranked=(SCORE,),
        shown=(SCORE, "probe.selectivity", "probe.compression"),
        entrant="entrant",
        block="task",
        averaged=False,
    )
    shows_texts = True

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the amounts of a preset. The demo compares two strategies at three layers, to have a board."""
        compared = {"strategies": ["A1_mean", "P1_last_token"], "layers": ["embedding", 0.5, "final"]}
        return super().preset(name, given) | (compared if name == "demo" else {})

    def way(self, protocol: str) -> Mapping[str, Any]:
        """Return how the reference pools, for protocol `published`: over all positions of a text."""
        return {"strategies": ["A11_mean_all"]} if protocol == "published" else {}

    def check(self, config: HolmesConfig) -> None:
        """Raise UnknownNameError or CorpusError for probing sets and strategies that are not there."""
        from poolbench_driver.suites.holmes.plan import chosen_sets, strategies_of

        chosen_sets(config)
        strategies_of(config)

    def describe(self, plan: HolmesPlan) -> Description:
        """Return what a dry run says about a plan."""
        scope = plan.scope
        sets, cells = len(scope.sets), len(scope.strategies) * len(scope.layers) * (1 + len(scope.config.control))
        return Description([f"{sets} probing sets, {cells} entrants"], {"sets": list(scope.sets), "entrants": cells})

    def recorded(self, source: Path) -> Recorded:
        """Return the winning rates of a table of the public leaderboard, and which claims of the paper it supports."""
        from poolbench_driver.suites.holmes.claims import claims_markdown
        from poolbench_driver.suites.holmes.recorded import board, board_markdown, read_scores

        scores = read_scores(source)
        rows = board(scores)
        return Recorded(rows, f"{board_markdown(source, scores, rows)}\n\n{claims_markdown(scores)}", scores.notes)


SUITES.add(Holmes())
