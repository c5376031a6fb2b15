"""Coverage of 95 % intervals and levels of tests at .05, on simulated data sets.

`python -m driver.tests.test_statistics_coverage` prints the shares that docs/metrics.md rounds; about five minutes on
one core. The bootstrap intervals are percentile intervals, as everywhere in PoolBench.
"""

import argparse
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_mean_resamples, group_weights, percentile_interval
from poolbench_driver.statistics.correlation import spearman
from poolbench_driver.statistics.ranks import (
    friedman_test,
    iman_davenport_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
)

pytestmark = [pytest.mark.lane(name="simulations")]
#: Numbers of groups of the table: the demo's concepts, and twice as many; the card's, and two and three models of them
#: were they independent; then where 93 to 97 % are demanded.
GROUPS = (4, 8, 17, 33, 51, 200, 400)
LEVEL_TAILS = [2.5, 97.5]
LIFT = 0.8  # of the positives' scores, in standard deviations
GOODNESS = np.linspace(0, 1, 19)  # of 19 strategies, in standard deviations of a concept's noise

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draw values of groups around 0."""
    return rng.normal(size=size)


def skewed(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draw values from an exponential distribution with mean 0 and skewness 2."""
    return rng.exponential(size=size) - 1


def of_means(draw: Draw, num_groups: int, num_runs: int, rng: np.random.Generator) -> float:
    """Return the coverage of the mean of groups of 1 to 5 units that share most of their value."""
    sizes = rng.integers(1, 6, size=num_groups)
    shared = np.repeat(draw(rng, (num_groups, num_runs)), sizes, axis=0)
    values = shared + 0.3 * rng.normal(size=shared.shape)
    samples = group_mean_resamples(values, np.repeat(np.arange(num_groups), sizes), seed=int(rng.integers(2**31)))
    low, high = np.percentile(samples, LEVEL_TAILS, axis=0)
    return float(((low <= 0) & (high >= 0)).mean())


def of_auroc(num_groups: int, num_runs: int, rng: np.random.Generator, num_folds: int = 1) -> float:
    """Return the coverage of the AUROC of matched pairs, whose two scores share half of their variance.

    Scores of each fold have an offset of their own, as in D1.
    """
    labels, groups = np.repeat([1, 0], num_groups), np.tile(np.arange(num_groups), 2)
    folds = groups % num_folds
    truth = stats.norm.cdf(LIFT / np.sqrt(2))  # of two units drawn from different pairs
    hits = 0
    for run in range(num_runs):
        shared = np.tile(rng.normal(size=num_groups), 2) * np.sqrt(0.5)
        scores = shared + np.sqrt(0.5) * rng.normal(size=2 * num_groups) + LIFT * labels + 9 * folds
        samples = auroc_resamples(labels, scores, group_weights(groups, 500, seed=run), folds, groups)
        low, high = percentile_interval(samples) or (np.nan, np.nan)
        hits += bool(low <= truth <= high)
    return hits / num_runs


def of_ranks(num_groups: int, num_runs: int, rng: np.random.Generator) -> float:
    """Return the coverage of the mean ranks of 19 strategies over concepts, averaged over strategies."""
    truth = ranks_of(rng, 200_000, GOODNESS).mean(axis=0)
    hits = []
    for run in range(num_runs):
        intervals = mean_rank_intervals(ranks_of(rng, num_groups, GOODNESS), num_resamples=500, seed=run)
        hits += [low <= mean <= high for (low, high), mean in zip(intervals, truth, strict=True)]
    return float(np.mean(hits))


def levels(num_groups: int, num_runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Return how often tests at .05 reject 19 equal strategies: Friedman, Iman-Davenport, any pair by Nemenyi."""
    alike = np.zeros_like(GOODNESS)
    difference = nemenyi_critical_difference(len(alike), num_groups, 0.05)
    rejections = np.zeros(3)
    for _ in range(num_runs):
        ranks = ranks_of(rng, num_groups, alike)
        p_values = friedman_test(-ranks).p_value, iman_davenport_test(-ranks).p_value
        rejections += [*(p < 0.05 for p in p_values), np.ptp(mean_ranks(ranks)) > difference]
    return dict(zip(("friedman", "iman_davenport", "nemenyi"), (rejections / num_runs).tolist(), strict=True))


def agreement(num_groups: int, num_runs: int, rng: np.random.Generator) -> float:
    """Return the mean Spearman correlation of the mean ranks on two layers that have one true order."""
    sides = ((mean_ranks(ranks_of(rng, num_groups, 2 * GOODNESS)) for _ in range(2)) for _ in range(num_runs))
    return float(np.mean([spearman(*pair) for pair in sides]))


def ranks_of(rng: np.random.Generator, num_blocks: int, goodness: np.ndarray) -> np.ndarray:
    """Draw the ranks of strategies in blocks, 1 for the best [num_blocks, num_strategies]."""
    scores = rng.normal(size=(num_blocks, len(goodness))) + goodness
    return stats.rankdata(-scores, axis=1)


def coverages(num_groups: int, num_runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the coverage of every interval."""
    return {
        "mean_normal": of_means(normal, num_groups, num_runs, rng),
        "mean_skewed": of_means(skewed, num_groups, num_runs, rng),
        "auroc": of_auroc(num_groups, num_runs, rng),
        "mean_rank": of_ranks(num_groups, num_runs, rng),
    }


@pytest.mark.parametrize(
    ("num_groups", "lowest", "lowest_skewed", "highest"),
    [(4, 0.7, 0.65, 0.92), (17, 0.88, 0.83, 0.97), (33, 0.9, 0.86, 0.98)],
)
def test_intervals_contain_the_true_value(num_groups: int, lowest: float, lowest_skewed: float, highest: float) -> None:
    shares = coverages(num_groups, 1000, np.random.default_rng(num_groups))
    assert lowest_skewed <= shares.pop("mean_skewed") <= highest
    assert all(lowest <= share <= highest for share in shares.values()), shares


def test_intervals_of_200_groups_contain_it_in_95_percent() -> None:
    """Demanded are 93 to 97 %; the bounds add a standard error of the smallest simulation."""
    rng = np.random.default_rng(3)
    shares = [of_means(draw, 200, 3000, rng) for draw in (normal, skewed)]
    shares.append(of_auroc(200, 600, rng, num_folds=5))
    assert all(0.92 <= share <= 0.98 for share in shares), shares


@pytest.mark.parametrize("num_concepts", [4, 17, 51])
def test_tests_of_ranks_keep_their_level(num_concepts: int) -> None:
    shares = levels(num_concepts, 1000, np.random.default_rng(num_concepts))
    error = np.sqrt(0.05 * 0.95 / 1000)
    assert max(shares.values()) <= 0.05 + 5 * error
    assert shares["iman_davenport"] >= 0.05 - 4 * error  # the others are conservative where concepts are few


@pytest.mark.parametrize(("num_concepts", "expected"), [(4, 0.6), (17, 0.86), (51, 0.95)])
def test_agreement_of_one_order_grows_with_the_concepts(num_concepts: int, expected: float) -> None:
    assert agreement(num_concepts, 300, np.random.default_rng(num_concepts)) == pytest.approx(expected, abs=0.05)


def main() -> None:
    """Print every share by number of groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated data sets")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for num_groups in GROUPS:
        rng, again = (np.random.default_rng([options.seed, num_groups]) for _ in range(2))
        shares = coverages(num_groups, options.runs, rng) | levels(num_groups, options.runs, again)
        shares["agreement"] = agreement(num_groups, options.runs, again)
        print(num_groups, *(f"{name} {share:.3f}" for name, share in shares.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
