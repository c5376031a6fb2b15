"""Coverage of 95 % intervals, and levels of tests at .05. docs/metrics.md has the figures.

Nothing is timed: the ratios are shares of simulated data sets, by number of groups. The bootstrap intervals are
percentile intervals, as everywhere in PoolBench.
"""

from collections.abc import Callable

import numpy as np
from common import Parser, write_report
from ratios import GROUPS
from scipy import stats

from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import bootstrap_counts, group_mean_resamples, group_weights, percentile_interval
from poolbench_driver.statistics.correlation import spearman
from poolbench_driver.statistics.ranks import (
    friedman_test,
    iman_davenport_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
)

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


def of_auroc(num_groups: int, num_runs: int, rng: np.random.Generator) -> float:
    """Return the coverage of the AUROC of matched pairs, whose two scores share half of their variance."""
    labels, groups = np.repeat([1, 0], num_groups), np.tile(np.arange(num_groups), 2)
    truth = stats.norm.cdf(LIFT / np.sqrt(2))  # of two units drawn from different pairs
    hits = 0
    for run in range(num_runs):
        shared = np.tile(rng.normal(size=num_groups), 2) * np.sqrt(0.5)
        scores = shared + np.sqrt(0.5) * rng.normal(size=2 * num_groups) + LIFT * labels
        samples = auroc_resamples(labels, scores, group_weights(groups, 500, seed=run), groups=groups)
        low, high = percentile_interval(samples) or (np.nan, np.nan)
        hits += bool(low <= truth <= high)
    return hits / num_runs


def of_ranks(num_groups: int, num_runs: int, rng: np.random.Generator) -> float:
    """Return the coverage of the mean ranks of 19 strategies over concepts, averaged over strategies."""
    truth = _ranks(rng, 200_000, GOODNESS).mean(axis=0)
    hits = []
    for run in range(num_runs):
        intervals = mean_rank_intervals(_ranks(rng, num_groups, GOODNESS), num_resamples=500, seed=run)
        hits += [low <= mean <= high for (low, high), mean in zip(intervals, truth, strict=True)]  # type: ignore[misc]
    return float(np.mean(hits))


def levels(num_groups: int, num_runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Return how often tests at .05 reject 19 equal strategies: Friedman, Iman-Davenport, any pair by Nemenyi."""
    alike = np.zeros_like(GOODNESS)
    difference = nemenyi_critical_difference(len(alike), num_groups, 0.05)
    rejections = np.zeros(3)
    for _ in range(num_runs):
        ranks = _ranks(rng, num_groups, alike)
        p_values = friedman_test(-ranks).p_value, iman_davenport_test(-ranks).p_value
        rejections += [*(p < 0.05 for p in p_values), np.ptp(mean_ranks(ranks)) > difference]
    return dict(zip(("friedman", "iman_davenport", "nemenyi"), (rejections / num_runs).tolist(), strict=True))


def agreement(num_groups: int, num_runs: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the mean Spearman correlation of the mean ranks on two layers of one true order, and its coverage."""
    values, held = [], 0
    for run in range(num_runs):
        sides = [_ranks(rng, num_groups, 2 * GOODNESS) for _ in range(2)]
        weights = bootstrap_counts(num_groups, 500, run).astype(np.float64)
        values.append(spearman(*(mean_ranks(ranks) for ranks in sides)))
        low, high = np.percentile(spearman(*(mean_ranks(ranks, weights) for ranks in sides)), LEVEL_TAILS)
        held += bool(low <= 1 <= high)
    return {"mean": float(np.mean(values)), "coverage": held / num_runs}


def _ranks(rng: np.random.Generator, num_blocks: int, goodness: np.ndarray) -> np.ndarray:
    scores = rng.normal(size=(num_blocks, len(goodness))) + goodness
    return stats.rankdata(-scores, axis=1)


def main() -> None:
    """Simulate every statistic at every number of groups."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="simulated data sets")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.options(runs=2)
    ratios: dict[str, float | None] = {}
    for num_groups in GROUPS:
        rng = np.random.default_rng([arguments.seed, num_groups])
        runs = arguments.runs
        ratios[f"coverage.mean_normal.{num_groups}"] = of_means(normal, num_groups, runs, rng)
        ratios[f"coverage.mean_skewed.{num_groups}"] = of_means(skewed, num_groups, runs, rng)
        ratios[f"coverage.auroc.{num_groups}"] = of_auroc(num_groups, runs, rng)
        ratios[f"coverage.mean_rank.{num_groups}"] = of_ranks(num_groups, runs, rng)
        rng = np.random.default_rng([arguments.seed, num_groups])  # what is simulated above may change without these
        for name, share in levels(num_groups, runs, rng).items():
            ratios[f"level.{name}.{num_groups}"] = share
        for name, share in agreement(num_groups, runs, rng).items():
            ratios[f"rank_agreement.{name}.{num_groups}"] = share
    error = float(np.sqrt(0.95 * 0.05 / arguments.runs))
    write_report("coverage", arguments, ratios, {"level": 0.95, "standard_error": error})


if __name__ == "__main__":
    main()
