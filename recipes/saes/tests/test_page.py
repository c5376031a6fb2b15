"""The page docs/results/ce-bench.md, from runs made by hand."""

from collections.abc import Callable
from pathlib import Path

from recipes.saes.page import lines_of
from tests.system.driver.test_ce_bench import plan_of, run, saes, stories  # noqa: F401  (fixtures)

from poolbench_driver.records import Run


def test_the_page_has_a_board_of_each_set_of_stories(
    run: Callable[..., Run],  # noqa: F811
    saes: Path,  # noqa: F811
    stories: str,  # noqa: F811
) -> None:
    page = "\n".join(lines_of([run(plan_of(saes / "one", saes / "two", stories=stories))]))
    board = page.partition("## Pairs of real passages")[2]
    assert "| one random | 3 |" in board and "| one | 3 |" in board and "interpretability" in board
    assert all(len(line) <= 100 for line in page.splitlines() if not line.startswith("|"))
