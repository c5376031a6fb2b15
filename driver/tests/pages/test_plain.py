"""Figures by what they are of."""

from poolbench_driver.pages.plain import HasFigures, figures_by


def test_figures_are_rows_by_metric_for_each_combination_of_columns() -> None:
    rows = [
        {"entrant": "a", "layer": 1, "metric": "x", "value": 0.5},
        {"entrant": "a", "layer": 2, "metric": "x", "value": None},
        {"entrant": "a", "layer": 1, "metric": "y", "value": 2.0},
    ]
    figures = figures_by(rows, "entrant", "layer")
    assert figures == {("a", 1): {"x": rows[0], "y": rows[2]}, ("a", 2): {"x": rows[1]}}
    assert figures["b", 1] == {}


def test_a_figure_that_is_null_or_was_not_measured_has_no_value() -> None:
    one = HasFigures()
    one.figures = {"x": {"value": 0.5}, "y": {"value": None}}
    assert (one.value("x"), one.value("y"), one.value("z")) == (0.5, None, None)
