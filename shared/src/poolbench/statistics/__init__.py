"""Statistical tests and intervals: arrays in, numbers out."""

from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import (
    bootstrap_counts,
    group_mean_resamples,
    group_weights,
    mean_interval,
    percentile_interval,
    t_interval,
)
from poolbench.statistics.correlation import spearman
from poolbench.statistics.folds import MIN_GROUPS, connected_groups, drawn_splits, grouped_folds
from poolbench.statistics.inputs import StatisticError
from poolbench.statistics.mcnemar import mcnemar_power, mcnemar_test
from poolbench.statistics.multiple import holm
from poolbench.statistics.paired import paired_differences, paired_permutation_test, within_pair_accuracy
from poolbench.statistics.ranks import (
    friedman_test,
    iman_davenport_test,
    mean_rank_intervals,
    mean_ranks,
    nemenyi_critical_difference,
)
from poolbench.statistics.training_size import recommend_training_size
from poolbench.statistics.winning_rate import rank_resolution

__all__ = [
    "MIN_GROUPS",
    "StatisticError",
    "auroc",
    "auroc_resamples",
    "bootstrap_counts",
    "connected_groups",
    "drawn_splits",
    "friedman_test",
    "group_mean_resamples",
    "group_weights",
    "grouped_folds",
    "holm",
    "iman_davenport_test",
    "mcnemar_power",
    "mcnemar_test",
    "mean_interval",
    "mean_rank_intervals",
    "mean_ranks",
    "nemenyi_critical_difference",
    "paired_differences",
    "paired_permutation_test",
    "percentile_interval",
    "rank_resolution",
    "recommend_training_size",
    "spearman",
    "t_interval",
    "within_pair_accuracy",
]
