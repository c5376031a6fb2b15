"""Up to which strength the harm of steering stays below named levels, by tests at rising strengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class HarmLevels:
    """The levels that harm is to stay below, and how often a limit may be wrong.

    Attributes:
        wrong_way: Share of openings that move the wrong way.
        fall: An opening moves the wrong way if its score falls by more than this.
        perplexity_ratio: Perplexity of steered over unsteered texts, as the geometric mean over openings.
        alpha: Largest probability of a limit at which a level is reached, or below which it is.
    """

    wrong_way: float
    fall: float
    perplexity_ratio: float
    alpha: float

    @property
    def num_needed(self) -> int:
        """Return the number of openings from which on a share of 0 shows that the true share is below the level."""
        return math.floor(math.log(self.alpha) / math.log1p(-self.wrong_way)) + 1


class HarmTest(NamedTuple):
    """Harm at one strength, with upper confidence bounds."""

    strength: float
    wrong_way: float
    wrong_way_bound: float
    perplexity_ratio: float | None  # None, as its bound, with fewer than two texts that have a perplexity
    perplexity_bound: float | None


class StrengthLimit(NamedTuple):
    """The largest strength that was shown to stay below the levels, or None, with the tests up to the first failure."""

    strength: float | None
    tests: Sequence[HarmTest]
    reason: str  # why the limit is not higher


def strength_limit(
    strengths_S: np.ndarray, rises_PS: np.ndarray, log_ratios_PS: np.ndarray, levels: HarmLevels
) -> StrengthLimit:
    """Return the strength up to which every test shows that harm stays below the levels.

    Strengths are tested in ascending order, and the first test that fails ends the sequence. An order that is fixed
    beforehand keeps the probability of any wrong rejection at alpha without a correction for the number of strengths. A
    test of two levels rejects only if both bounds do, which needs no correction either.

    Args:
        strengths_S: Ascending strengths above 0.
        rises_PS: Score of each opening at each strength minus the unsteered score.
        log_ratios_PS: Log-perplexity of each steered text minus that of the unsteered one, in nats. NaN for an empty
            text, which has no perplexity.
        levels: The levels.

    Reference: Maurer, Hothorn & Lehmacher (1995) for the fixed sequence; Berger (1982) for intersection-union tests.
    """
    limit, tests, num_openings = None, list[HarmTest](), len(rises_PS)
    if num_openings < levels.num_needed:
        needed = f"a share below {levels.wrong_way:g} at alpha {levels.alpha:g} needs {levels.num_needed}"
        return StrengthLimit(None, tests, f"too few openings: {num_openings} are complete, and {needed}")
    for strength, rises_P, log_ratios_P in zip(strengths_S.tolist(), rises_PS.T, log_ratios_PS.T, strict=True):
        test = _test(strength, rises_P, log_ratios_P, levels)
        tests.append(test)
        if reached := _reached(test, levels):
            return StrengthLimit(limit, tests, f"at strength {strength:g}, {reached}")
        limit = strength
    return StrengthLimit(limit, tests, "no larger strength was tested")


def _test(strength: float, rises_P: np.ndarray, log_ratios_P: np.ndarray, levels: HarmLevels) -> HarmTest:
    num_wrong = int((rises_P < -levels.fall).sum())
    bound = share_bound(num_wrong, len(rises_P), levels.alpha)
    finite = log_ratios_P[np.isfinite(log_ratios_P)]
    ratios = np.exp(mean_bound(finite, levels.alpha)).tolist() if len(finite) > 1 else (None, None)
    return HarmTest(strength, num_wrong / len(rises_P), bound, *ratios)


def _reached(test: HarmTest, levels: HarmLevels) -> str:
    """Return which level harm may reach, or "" if both bounds are below their levels."""
    if test.wrong_way_bound >= levels.wrong_way:
        return f"up to {test.wrong_way_bound:.0%} of openings may move the wrong way (level {levels.wrong_way:.0%})"
    if test.perplexity_bound is None:
        return "fewer than two openings have texts with a perplexity"
    if test.perplexity_bound >= levels.perplexity_ratio:
        return f"the perplexity ratio may be {test.perplexity_bound:.3g} (level {levels.perplexity_ratio:g})"
    return ""


def share_bound(count: int, num_openings: int, alpha: float) -> float:
    """Return the exact upper bound of a share at level 1 - alpha (Clopper and Pearson 1934, one-sided)."""
    from scipy import stats

    return float(stats.beta.ppf(1 - alpha, count + 1, num_openings - count)) if count < num_openings else 1.0


def mean_bound(values: np.ndarray, alpha: float) -> tuple[float, float]:
    """Return the mean of `values` [n], and Student's upper bound of the mean at level 1 - alpha / 2; n is at least 2.

    The bound assumes that the sample mean is close to normal. Differences of log-perplexities are skewed to the right
    (skewness up to 1 on the models that ship), so that a bound at level 1 - alpha is wrong in 1.4 to 1.6 alpha of cases
    for 14 to 44 openings. Half of alpha makes up for this; `bench/limits.py` counts how often limits are wrong.
    """
    from scipy import stats

    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    return mean, mean + float(stats.t.ppf(1 - alpha / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
