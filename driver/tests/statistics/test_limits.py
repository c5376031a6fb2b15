"""The largest strength whose harm stays below its levels: bounds by hand, and where the sequence of tests ends."""

import math

import numpy as np
import pytest
from scipy import stats

from poolbench_driver.statistics.limits import HarmLevels, mean_bound, share_bound, strength_limit

LEVELS = HarmLevels(wrong_way=0.2, fall=0.1, perplexity_ratio=1.5, alpha=0.05)
STRENGTHS = np.array([0.1, 0.2, 0.4])


def harm(
    num_wrong: tuple[int, ...], ratios: tuple[float, ...], num_openings: int = 30
) -> tuple[np.ndarray, np.ndarray]:
    """Return rises of the score and of the log-perplexity; so many openings fall by .3, and ratios hardly vary."""
    rises = np.full((num_openings, 3), 0.2)
    for column, number in enumerate(num_wrong):
        rises[:number, column] = -0.3
    spread = np.linspace(-0.01, 0.01, num_openings)[:, None]
    return rises, np.log(ratios) + spread


@pytest.mark.parametrize(("count", "num", "alpha"), [(0, 14, 0.05), (3, 30, 0.05), (29, 30, 0.1)])
def test_the_bound_of_a_share_is_exact(count: int, num: int, alpha: float) -> None:
    """At the bound, so few openings or fewer are seen with probability alpha."""
    assert stats.binom.cdf(count, num, share_bound(count, num, alpha)) == pytest.approx(alpha)
    assert share_bound(num, num, alpha) == 1


def test_the_bound_of_a_mean_is_students_at_half_of_alpha() -> None:
    values = np.array([0.1, 0.3, 0.2, 0.6])
    mean, bound = mean_bound(values, 0.05)
    expected = stats.ttest_1samp(values, 0, alternative="less").confidence_interval(0.975).high
    assert (mean, bound) == (pytest.approx(0.3), pytest.approx(expected))


@pytest.mark.parametrize(("level", "alpha", "needed"), [(0.2, 0.05, 14), (0.1, 0.05, 29), (0.5, 0.1, 4)])
def test_so_many_openings_are_needed_for_a_level(level: float, alpha: float, needed: int) -> None:
    levels = HarmLevels(level, 0.1, 1.5, alpha)
    assert levels.num_needed == needed
    assert share_bound(0, needed, alpha) < level <= share_bound(0, needed - 1, alpha)
    few = strength_limit(STRENGTHS, *harm((0, 0, 0), (1, 1, 1), needed - 1), levels)
    assert (few.strength, few.tests) == (None, []) and f"{needed - 1} are complete" in few.reason
    assert f"needs {needed}" in few.reason
    assert strength_limit(STRENGTHS, *harm((0, 0, 0), (1, 1, 1), needed), levels).strength == 0.4


@pytest.mark.parametrize(
    ("num_wrong", "ratios", "limit", "num_tests", "reason"),
    [
        ((0, 0, 0), (1.0, 1.1, 1.2), 0.4, 3, "no larger strength was tested"),
        ((0, 0, 8), (1.0, 1.1, 1.2), 0.2, 3, "at strength 0.4, up to 43% of openings may move the wrong way"),
        ((0, 8, 0), (1.0, 1.1, 1.2), 0.1, 2, "at strength 0.2, up to 43% of openings may move the wrong way"),
        ((0, 0, 0), (1.0, 1.6, 1.2), 0.1, 2, "at strength 0.2, the perplexity ratio may be 1.6 (level 1.5)"),
        ((8, 0, 0), (1.0, 1.1, 1.2), None, 1, "at strength 0.1, up to 43% of openings may move the wrong way"),
    ],
)
def test_the_first_strength_that_fails_ends_the_sequence(
    num_wrong: tuple[int, ...], ratios: tuple[float, ...], limit: float | None, num_tests: int, reason: str
) -> None:
    found = strength_limit(STRENGTHS, *harm(num_wrong, ratios), LEVELS)
    assert (found.strength, len(found.tests)) == (limit, num_tests) and reason in found.reason
    last = found.tests[-1]
    assert last.wrong_way == num_wrong[num_tests - 1] / 30 < last.wrong_way_bound
    assert last.perplexity_ratio == pytest.approx(ratios[num_tests - 1])


def test_a_small_fall_is_not_the_wrong_way() -> None:
    rises, log_ratios = harm((0, 0, 0), (1, 1, 1))
    found = strength_limit(STRENGTHS, rises - 0.29, log_ratios, LEVELS)
    assert (found.strength, found.tests[0].wrong_way) == (0.4, 0)
    assert strength_limit(STRENGTHS, rises - 0.31, log_ratios, LEVELS).strength is None


def test_a_text_without_tokens_has_no_perplexity() -> None:
    rises, log_ratios = harm((0, 0, 0), (1.0, 1.1, 1.2))
    log_ratios[:5, 1] = math.nan
    log_ratios[1:, 2] = math.nan
    found = strength_limit(STRENGTHS, rises, log_ratios, LEVELS)
    assert found.strength == 0.2 and found.tests[1].perplexity_ratio == pytest.approx(1.1, rel=0.01)
    assert found.tests[2].perplexity_bound is None
    assert found.reason == "at strength 0.4, fewer than two openings have texts with a perplexity"
