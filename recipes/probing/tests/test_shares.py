"""How far shares of the data keep an order, from a run that was made by hand."""

from driver.tests.suites.test_holmes import folder  # noqa: F401  (a fixture)
from recipes.probing.shares import shares

from poolbench_driver.records import Run


def test_a_run_over_its_own_keeps_all(folder: Run) -> None:  # noqa: F811
    text = shares((folder, folder, folder))
    assert "| share of train |" in text and "100 %" in text  # texts and seconds
