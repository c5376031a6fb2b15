"""The statistics of response curves by hand. Those of D2, and their intervals, are tested with the suite."""

import numpy as np
import pytest

from poolbench.errors import CellError
from poolbench.statistics.response import ResponseGrid
from poolbench.statuses import Status
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.measures.response import (
    SteeringRules,
    gain_at,
    opening_interval,
    or_zeros,
    response_area,
    rules_of,
    scp,
    scp_1,
    tables_of_scores,
)

RULES = SteeringRules()
EACH_ONCE = np.ones((1, 2))


def grid_of(score: list[list[float]], strengths: tuple[float, ...] = (0.0, 0.125, 0.25)) -> ResponseGrid:
    """Return the grid of some openings, all of the first half, with fluent texts."""
    score_PS = np.array(score)
    ones = np.ones_like(score_PS)
    names = tuple(f"p{number}" for number in range(len(score)))
    return ResponseGrid(names, np.array(strengths), score_PS, 2 * ones, 20 * ones, 0 * ones, np.ones(len(score), bool))


def test_the_statistics_of_a_curve() -> None:
    grid = grid_of([[0.1, 0.2, 0.5], [0.3, 0.4, 0.7]])
    assert scp(grid, EACH_ONCE, RULES) == pytest.approx([1])
    assert scp_1(grid, EACH_ONCE, RULES) == pytest.approx([0.1])
    assert response_area(grid, EACH_ONCE, RULES) == pytest.approx([(0.5 * 0.1 + 0.5 * 0.5) / 2])
    assert gain_at(grid, 2, np.array([[1, 1], [2, 0]])) == pytest.approx([0.4, 0.4])


def test_a_correlation_needs_three_strengths_and_a_gain_needs_all_texts() -> None:
    with pytest.raises(CellError, match="2 strengths"):
        scp(grid_of([[0.1, 0.2], [0.3, 0.4]], (0.0, 0.125)), EACH_ONCE, RULES)
    with pytest.raises(CellError, match=r"text at strength 0\.25"):
        gain_at(grid_of([[0.1, 0.2, np.nan], [0.3, 0.4, 0.7]]), 2, EACH_ONCE)


def test_a_null_direction_without_a_figure_counts_as_zero() -> None:
    def fails() -> np.ndarray:
        raise CellError(Status.NOT_FLUENT, "no strength is fluent")

    assert or_zeros(fails, 3).tolist() == [0, 0, 0]
    assert or_zeros(lambda: np.array([0.5, np.nan]), 2).tolist() == [0.5, 0]


def test_one_opening_has_no_interval() -> None:
    assert opening_interval(np.array([0.1, 0.2]), 1) is None
    low, high = opening_interval(np.linspace(0, 1, 101), 10) or (0.0, 0.0)
    assert 0 <= low < 0.025 and 0.975 < high <= 1


def test_the_rules_of_a_run_are_its_settings() -> None:
    config = load_run_config(None, {"preset": "demo", "seed": 3, "steering": {"reading": "whole"}})
    assert isinstance(config, ConceptsConfig)
    rules = rules_of(config)
    assert (rules.seed, rules.num_bootstrap, rules.is_lazy) == (3, config.budget.num_bootstrap, False)
    assert rules.null_strengths == (0.0, *config.budget.null_strengths)


def test_rows_of_scores_are_tables_of_texts() -> None:
    row = {"text_id": "t", "prompt_id": "p", "direction": 0, "strength": 0.125, "score": 0.5, "mean_nll": 2.0}
    tables = tables_of_scores([{**row, "scorer": "contrast"}, {**row, "scorer": "causation"}])
    assert (tables.texts.num_rows, tables.scores.num_rows) == (1, 2)
    assert tables.texts["direction_key"].to_pylist() == ["0"]
    with pytest.raises(CellError, match="no steered texts"):
        tables_of_scores([])
