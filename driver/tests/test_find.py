"""A vector is chosen on one half of the openings and read on the other: the figure must not be optimistic."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.pages import REPOSITORY

from poolbench.config.budgets import BUDGETS
from poolbench.errors import CellError, RestrictedError
from poolbench.statistics.response import ResponseGrid, split_openings
from poolbench_driver.find.search import Search, find, grid_of, screen
from poolbench_driver.find.selection import Candidate, select
from poolbench_driver.find.settings import FindSettings
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.results import RESULT_SCHEMA

STRENGTHS = np.array([0.0, 0.1, 0.2, 0.4])
RULES = SteeringRules(num_bootstrap=400)


def candidate(number: int) -> Candidate:
    return Candidate(number % 3, f"S{number}", f"S{number}", "C1")


def grid(rises: np.ndarray, noise: np.ndarray, base: np.ndarray, ratio: float = 1.0) -> ResponseGrid:
    """Scores of openings [P, S]: `base` [P] unsteered, and rises [S] with noise [P, S]."""
    score = base[:, None] + rises[None, :] + noise
    score[:, 0] = base
    nll = np.tile(np.where(STRENGTHS > 0, 2 + np.log(ratio), 2.0), (len(base), 1))
    names = [f"o{p:03}" for p in range(len(base))]
    num_tokens, repeated, is_first = 40 + 0 * score, 0 * score, np.isin(names, split_openings(names, 0)[0])
    return ResponseGrid(tuple(names), STRENGTHS, score, nll, num_tokens, repeated, is_first)


def simulated(
    rng: np.random.Generator, true_gains: np.ndarray, num_openings: int = 40
) -> dict[Candidate, ResponseGrid]:
    base, shape = rng.normal(0.3, 0.1, num_openings), np.array([0, 0.5, 1.0, 0.8])
    return {
        candidate(number): grid(gain * shape, rng.normal(0, 0.15, (num_openings, 4)), base)
        for number, gain in enumerate(true_gains)
    }


def near_0_or_1(rng: np.random.Generator, true_gains: np.ndarray, num_openings: int) -> dict[Candidate, ResponseGrid]:
    """Scores as most scorers give them: of a quarter of the unsteered texts high, and steering makes some texts 1."""
    base, grids = rng.beta(0.3, 0.9, num_openings), dict[Candidate, ResponseGrid]()
    for number, gain in enumerate(true_gains):
        shares = gain * np.array([0, 0.5, 1.0, 0.8]) / 0.75
        is_raised = rng.random((num_openings, 4)) < shares
        scores = np.where(is_raised, 1.0, rng.beta(0.3, 0.9, (num_openings, 4)))
        grids[candidate(number)] = grid(np.zeros(4), scores - base[:, None], base)
    return grids


def stated_coverage() -> dict[int, tuple[float, float]]:
    """Return what docs/metrics.md states by the openings that are read: of normal scores, of those near 0 or 1."""
    page = (REPOSITORY / "docs/metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \|[^|]+\| (\d+) % \| (\d+) % \|$", page, re.MULTILINE)
    return {int(num_read): (int(normal) / 100, int(near) / 100) for num_read, normal, near in rows}


def test_the_coverage_of_each_budget_is_stated() -> None:
    assert {budget.num_openings // 2 for budget in BUDGETS.values()} == stated_coverage().keys()


@pytest.mark.lane(name="simulations")
@pytest.mark.parametrize("num_read", [4, 5, 10, 25])
@pytest.mark.parametrize("kind", [0, 1], ids=["normal", "near-0-or-1"])
def test_the_figure_that_is_read_covers_the_truth_as_stated_and_the_naive_one_does_not(
    kind: int, num_read: int
) -> None:
    """500 searches over 10 candidates of which none is better than another: the hardest case for a naive figure."""
    rng, covered, naive, honest = np.random.default_rng(0), 0, [], []
    for _ in range(500):
        selection = select((simulated, near_0_or_1)[kind](rng, np.full(10, 0.2), 2 * num_read), RULES)
        truth = 0.2 * {0.0: 0.0, 0.1: 0.5, 0.2: 1.0, 0.4: 0.8}[selection.strength]
        low, high = selection.interval or (0.0, 0.0)
        covered += low <= truth <= high
        naive.append(selection.naive - 0.2)
        honest.append(selection.gain - truth)
    assert covered / 500 == pytest.approx(stated_coverage()[num_read][kind], abs=0.0151)
    assert abs(np.mean(honest)) < 3 * np.std(honest) / np.sqrt(500)
    assert np.mean(naive) > 0.03 and np.mean(np.array(naive) > 0) > 0.95


def test_the_best_is_chosen_and_the_others_stand_apart() -> None:
    gains = np.array([0.05, 0.05, 0.6, 0.05])
    selection = select(simulated(np.random.default_rng(1), gains), RULES)
    assert selection.chosen == candidate(2) and selection.strength == 0.2 and selection.tied == {candidate(2)}
    assert selection.gain == pytest.approx(0.6, abs=0.15) and next(iter(selection.gains)) == candidate(2)
    assert selection.optimism == pytest.approx(selection.naive - selection.gain)


def test_equal_candidates_are_tied_and_those_without_fluent_texts_are_left_out() -> None:
    rng = np.random.default_rng(2)
    grids = simulated(rng, np.full(4, 0.3))
    broken = grid(np.array([0, 2, 2, 2.0]), np.zeros((40, 4)), rng.normal(0.3, 0.1, 40), ratio=3.0)
    selection = select(grids | {candidate(9): broken}, RULES)
    assert candidate(9) not in selection.gains and "not fluent" in selection.excluded[candidate(9)]
    assert len(selection.tied) >= 3
    with pytest.raises(CellError, match="no candidate can be chosen"):
        select({candidate(9): broken}, RULES)


def test_candidates_are_compared_on_the_openings_that_all_of_them_have() -> None:
    grids = simulated(np.random.default_rng(3), np.array([0.2, 0.4]))
    few = grids[candidate(0)].at_openings(np.arange(30))
    selection = select({candidate(0): few, candidate(1): grids[candidate(1)]}, RULES)
    assert selection.num_openings == len(few.halves[1]) < 20


def lazily_read() -> tuple[ResponseGrid, ResponseGrid]:
    """Return a good direction, whose second half has texts at its best strength alone, and a weak one.

    The weak one lacks the first opening of the choice. It makes .2 the best strength of the good one: without it, .4
    would be.
    """
    base = np.full(20, 0.3)
    good = grid(np.array([0, 0.1, 0.3, 0.35]), np.zeros((20, 4)), base)
    choose, read = good.halves
    good.score[choose[0], 2] += 1.0
    good.score[np.ix_(read, [1, 3])] = np.nan
    weak = grid(np.array([0, 0.05, 0.0, 0.0]), np.zeros((20, 4)), base)
    return good, weak.at_openings(np.delete(np.arange(20), choose[0]))


def test_an_opening_that_a_weak_candidate_lacks_does_not_exclude_a_better_one() -> None:
    good, weak = lazily_read()
    selection = select({candidate(0): good, candidate(1): weak}, RULES)
    assert not selection.excluded and selection.chosen == candidate(0)
    assert (selection.strength, selection.gain) == (0.2, pytest.approx(0.3))


def test_the_best_against_itself_is_not_a_test() -> None:
    """With six openings read, the only p is 2 / 2^6 = .031: a correction for two tests would tie the two."""
    base = np.full(12, 0.3)
    rises = (np.array([0, 0.5, 0.5, 0.5]), np.array([0, 0.1, 0.1, 0.1]))
    grids = {candidate(n): grid(rise, np.zeros((12, 4)), base) for n, rise in enumerate(rises)}
    assert select(grids, RULES).tied == {candidate(0)}


def test_a_sensitive_concept_is_refused_before_any_work(tmp_path: Path) -> None:
    session: Any = None  # nothing may be asked of it
    search = Search.of(FindSettings(concept="toxicity"), tmp_path)
    with pytest.raises(RestrictedError, match="toxicity"):
        find(search, session, tmp_path, lambda: pytest.fail("a run began"), lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", ["scorer_invalid", "not_fluent", "no_coverage"])
def test_a_candidate_without_a_gain_cannot_be_chosen_and_says_why(tmp_path: Path, status: str) -> None:
    """A scorer that failed its gate gives scores all the same; they must not choose a vector."""
    folder = create_run(tmp_path, FindSettings(concept="contrast").steering(1, ["S0"]))
    row = dict.fromkeys(RESULT_SCHEMA.names) | {"metric": "d2.best_gain", "concept": "contrast", "strategy": "S0"}
    row |= {"status": status, "reason": "the gate failed", "higher_is_better": True}
    write_table(folder, "results", pa.Table.from_pylist([row], RESULT_SCHEMA))
    with pytest.raises(CellError, match="the gate failed") as caught:
        grid_of(folder, "contrast", candidate(0))
    assert caught.value.status == status


def test_strategies_are_screened_at_each_layer_and_nulls_never_pass() -> None:
    rows = [
        {"layer": layer, "strategy": name, "value": value, "reason": None if value else "no keyword"}
        for layer, values in ((2, (0.9, 0.7, None)), (1, (0.6, 0.8, None)))
        for name, value in zip("abc", values, strict=True)
    ]
    screened = list(screen(rows, 3))
    assert [(row["layer"], row["strategy"]) for row in screened if row["steered"]] == [
        (1, "b"), (1, "a"), (2, "a"), (2, "b"),
    ]  # fmt: skip
    assert [row["strategy"] for row in screen(rows, 1) if row["steered"]] == ["b", "a"]
