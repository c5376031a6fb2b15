"""The suite CE-Bench: how interpretable is a sparse autoencoder, without asking another model?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbench.errors import ConfigError
from poolbench_driver.config import RunConfig
from poolbench_driver.suites.registry import SUITES
from poolbench_driver.suites.suite import BoardSpec, Recorded, Suite

if TYPE_CHECKING:
    from pathlib import Path


class CeBench(Suite[RunConfig, Any, Any]):
    """Contrastive evaluation of sparse autoencoders on pairs of stories. So far it reads recorded tables only."""

    id = "ce-bench"
    summary = "sparse autoencoders on contrastive stories: recorded tables of CE-Bench"
    reference = "Gulko et al. (2025), CE-Bench: towards a reliable contrastive evaluation benchmark"
    config = RunConfig
    board = BoardSpec(
        ranked=("ce.interpretability",), shown=("ce.interpretability",), entrant="entrant", block="task", averaged=False
    )

    def check(self, config: RunConfig) -> None:
        """Raise ConfigError: there are no runs yet."""
        raise ConfigError("the suite ce-bench has no runs yet; read a recorded table with leaderboard --table")

    def recorded(self, source: Path) -> Recorded:
        """Return the board of a tree of recorded results, or how a csv table of scores agrees with SAEBench."""
        from poolbench_driver.suites.ce_bench.agreement import agreement
        from poolbench_driver.suites.ce_bench.claims import claims_markdown
        from poolbench_driver.suites.ce_bench.recorded import board, board_markdown, read_tree

        if source.is_file() or source.suffix == ".csv":
            return agreement(source)
        tree = read_tree(source)
        text = f"{board_markdown(source, tree)}\n\n{claims_markdown(tree.entries)}"
        return Recorded(board(tree.entries), text, tree.notes)


SUITES.add(CeBench())
