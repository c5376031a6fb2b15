"""Statistics: one test or interval a file, arrays in, numbers out."""

from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.correlation import kendall, pearson, spearman, spearman_interval
from poolbench.statistics.friedman import RankTestResult, friedman_test
from poolbench.statistics.multiple import benjamini_hochberg, holm
from poolbench.statistics.nemenyi import nemenyi_critical_difference, nemenyi_quantile
from poolbench.statistics.paired import within_pair_accuracy
from poolbench.statistics.ranks import block_ranks, mean_rank_intervals, mean_ranks
from poolbench.statistics.resampling import bootstrap_counts, group_weights, percentile_interval
from poolbench.statistics.wilcoxon import WilcoxonResult, wilcoxon_test

__all__ = [
    "RankTestResult",
    "WilcoxonResult",
    "auroc",
    "auroc_resamples",
    "benjamini_hochberg",
    "block_ranks",
    "bootstrap_counts",
    "friedman_test",
    "group_weights",
    "holm",
    "kendall",
    "mean_rank_intervals",
    "mean_ranks",
    "nemenyi_critical_difference",
    "nemenyi_quantile",
    "pearson",
    "percentile_interval",
    "spearman",
    "spearman_interval",
    "wilcoxon_test",
    "within_pair_accuracy",
]
