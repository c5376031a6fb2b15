"""The page that the frame makes of any run: what is null and why, each reason once, and the notes of the plan."""

from typing import Any

from poolbench.contracts import Row
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.plain import null_lines, plain_page

SPEC = BoardSpec(ranked=("m.score",), shown=("m.score", "m.other"), entrant="entrant", block="task")


def row(entrant: str, task: str, reason: str = "", **columns: Any) -> Row:
    """Return a result row, which is null if it has a reason."""
    status, value = ("too_few", None) if reason else ("ok", 0.5)
    cell = {"metric": "m.score", "entrant": entrant, "task": task, "status": status, "value": value, "reason": reason}
    return {**cell, "params": "{}", "n": 3, "cell_id": f"{entrant}-{task}", "ci_low": None, "ci_high": None, **columns}


def test_reasons_that_differ_in_a_number_are_one_line_with_whose_figures_and_on_which_blocks() -> None:
    rows = [row("a", "one", "3 of 40 items"), row("a", "two", "5 of 40 items"), row("b", "one"), row("b", "two")]
    assert list(null_lines(rows, SPEC, SPEC.ranked)) == ["m.score of a are null, too_few: 3 of 40 items"]
    rows[1] |= row("a", "two", "no items at all")
    assert list(null_lines(rows, SPEC, SPEC.ranked)) == [
        "m.score of a on one is null, too_few: 3 of 40 items",
        "m.score of a on two is null, too_few: no items at all",
    ]
    assert not list(null_lines([row("a", "one", "why", metric="m.other")], SPEC, SPEC.ranked))
    apart = row("a", "one", "why", is_apart=True)
    assert not list(null_lines([apart], SPEC, SPEC.ranked))


def test_the_page_of_a_run_has_its_nulls_and_notes() -> None:
    page = plain_page("M", "a model", [row("a", "one"), row("b", "one", "why")], SPEC, ["a set was left out"])
    assert [(problem.text, problem.anchor) for problem in page.problems] == [
        ("m.score of b is null, too_few: why", "nulls"),
        ("a set was left out", "made"),
    ]
    assert [line.cells[0].text for line in page.board.lines] == ["a", "b"]
