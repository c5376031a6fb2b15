"""The page of probing, from a run that was made by hand."""

from driver.tests.suites.test_holmes import folder  # noqa: F401  (a fixture)
from recipes.probing.page import page, picture

from poolbench_driver.records import Run


def test_the_page_has_board_pooling_controls_and_shares(folder: Run) -> None:  # noqa: F811
    text = page([folder], (folder, folder, folder))
    for part in (
        "demo A1_mean final leads",
        "## Which pooling carries what",
        "## What must hold",
        "| share of train |",
    ):
        assert part in text
    assert "100 %" in text  # texts and seconds of a run over its own
    drawn = picture(folder)
    assert drawn.startswith("<svg") and "var(--" not in drawn
