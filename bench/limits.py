"""How often the limit of a vector is wrong, in simulated searches whose true harm is known.

    python bench/limits.py [--draws 500] [--openings 44] [--smallest]

Each draw has the rises of the score and of the log-perplexity of some openings at rising strengths, and the limit that
they state. `limits.wrong` is the largest share, over the truths, of draws whose limit reaches a strength with a level
at or above the stated one: a limit may be wrong in at most alpha of draws (.05). The truths put the share, the
perplexity or both exactly at their levels from the third of four strengths on, where a limit is most often wrong;
differences of log-perplexity are normal, or as skewed as those of the demo model. Two more truths do clear harm: at the
weak strengths alone, and at the strong ones. `limits.found` is the share of draws of the latter that state the largest
harmless strength.

`figures.by_truth` has these shares by truth, with the exact 95 % interval of the share of wrong limits, and the limits
that were stated. `uncorrected` is the share of wrong limits if each strength is tested on its own, and the largest one
that passes is the limit.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from common import Parser, write_report
from scipy import stats

from poolbench_driver.find.settings import FindSettings
from poolbench_driver.statistics.limits import strength_limit

STRENGTHS = np.array([0.1, 0.2, 0.35, 0.5])
LEVELS = FindSettings(concept="any").harm_levels
#: Standard deviation of log-perplexity over openings, in nats, and skewness of the skewed ones: as on the demo model.
DEVIATION, SKEWNESS = 0.35, 1.0


class Truth(NamedTuple):
    """The true harm at each strength: share of openings moved the wrong way, and perplexity ratio."""

    wrong_way: tuple[float, ...]
    perplexity_ratio: tuple[float, ...]
    skewness: float = 0.0

    @property
    def limit(self) -> float:
        """Return the largest strength up to which both levels are kept; 0 if none is."""
        is_kept = np.less(self.wrong_way, LEVELS.wrong_way) & np.less(self.perplexity_ratio, LEVELS.perplexity_ratio)
        return float(np.concatenate([[0.0], STRENGTHS])[np.cumprod(is_kept).sum()])


LOW, MILD = (0.01, 0.02), (1.02, 1.1)
AT_SHARE, AT_RATIO = (*LOW, LEVELS.wrong_way, LEVELS.wrong_way), (*MILD, *2 * (LEVELS.perplexity_ratio,))
TRUTHS = {
    "share at its level": Truth(AT_SHARE, (*MILD, 1.1, 1.1)),
    "perplexity at its level": Truth((*LOW, 0.02, 0.02), AT_RATIO),
    "perplexity at its level, skewed": Truth((*LOW, 0.02, 0.02), AT_RATIO, SKEWNESS),
    "both at their levels, skewed": Truth(AT_SHARE, AT_RATIO, SKEWNESS),
    "harm falls again": Truth((0.3, 0.3, 0.02, 0.02), (1.02, 1.05, 1.1, 1.1)),
    "clear": Truth((*LOW, 0.5, 0.6), (*MILD, 1.8, 3.0)),
}


def drawn(truth: Truth, num_draws: int, num_openings: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the rises of the score and of the log-perplexity [draws, openings, strengths].

    The strengths of an opening are dependent, as its texts are: half of the variance is the opening's.
    """

    def quantiles() -> np.ndarray:
        of_opening = rng.normal(size=(num_draws, num_openings, 1))
        return stats.norm.cdf(np.sqrt(0.5) * (of_opening + rng.normal(size=(num_draws, num_openings, len(STRENGTHS)))))

    rises = np.where(quantiles() < truth.wrong_way, -2 * LEVELS.fall, 0.3)
    standard = stats.pearson3.ppf(quantiles(), truth.skewness)
    return rises, np.log(truth.perplexity_ratio) + DEVIATION * standard


def simulated(truth: Truth, num_draws: int, num_openings: int, seed: int = 0) -> dict[str, Any]:
    """Return how often the limit of a draw is wrong, how often it is the true one, and which limits were stated."""
    limits, uncorrected = list[float](), list[float]()
    for rises, logs in zip(*drawn(truth, num_draws, num_openings, np.random.default_rng(seed)), strict=True):
        limits.append(strength_limit(STRENGTHS, rises, logs, LEVELS).strength or 0.0)
        columns = [[at] for at in range(len(STRENGTHS))]
        alone = [strength_limit(STRENGTHS[one], rises[:, one], logs[:, one], LEVELS).strength for one in columns]
        uncorrected.append(max(strength or 0.0 for strength in alone))
    num_wrong = sum(limit > truth.limit for limit in limits)
    interval = stats.binomtest(num_wrong, num_draws).proportion_ci()
    return {
        "wrong": num_wrong / num_draws,
        "wrong_interval": [interval.low, interval.high],
        "found": sum(limit == truth.limit for limit in limits) / num_draws,
        "uncorrected": sum(limit > truth.limit for limit in uncorrected) / num_draws,
        "true_limit": truth.limit,
        "limits": dict(sorted(Counter(limits).items())),
    }


def main() -> None:
    """Simulate and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--openings", type=int, default=44)  # those of `find` with the budget of the demo
    options = parser.options(draws=20)
    by_truth = {name: simulated(truth, options.draws, options.openings) for name, truth in TRUTHS.items()}
    ratios = {
        "limits.wrong": max(figures["wrong"] for figures in by_truth.values()),
        "limits.found": by_truth["clear"]["found"],
    }
    write_report("limits", options, ratios, {"levels": vars(LEVELS), "by_truth": by_truth})


if __name__ == "__main__":
    main()
