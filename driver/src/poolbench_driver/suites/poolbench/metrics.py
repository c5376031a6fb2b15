"""The metrics of the suite PoolBench."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

#: Metrics of D1 whose figures are of the test split.
ON_TEST = ("d1.auroc_test", "d1.auroc_test_nested")
METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("d1.auroc", "out-of-fold AUROC of the linear probe, within-fold pairs", True, 0, 1),
    MetricInfo("d1.auroc_test", "AUROC on the test split of the probe fitted on train", True, 0, 1),
    MetricInfo("d1.within_pair", "share of matched pairs that the probe puts in order, ties .5", True, 0, 1),
    MetricInfo("d1.selectivity", "d1.auroc minus AUROC of word-presence control tasks", True, -1, 1),
    MetricInfo("d1.auroc_permuted", "mean AUROC with permuted labels: the chance check", None, 0, 1),
    MetricInfo("d1.auroc_domain", "AUROC on a domain that the probe never saw", True, 0, 1),
    MetricInfo("d1.auroc_sensitivity", "d1.auroc at another inverse regularisation C", True, 0, 1),
    MetricInfo("d1.auroc_seed", "d1.auroc with the folds of another seed", True, 0, 1),
    MetricInfo("d1.seed_spread", "standard deviation of d1.auroc over the seeds of the folds", False, 0),
    MetricInfo("d1.auroc_mlp", "d1.auroc of a probe with a hidden layer, on the same folds", True, 0, 1),
    MetricInfo("d1.mlp_gain", "d1.auroc_mlp minus d1.auroc: what a linear probe misses", None, -1, 1),
    MetricInfo("d1.auroc_nested", "d1.auroc with the layer chosen inside the training folds", True, 0, 1),
    MetricInfo("d1.auroc_test_nested", "d1.auroc_test at the layer chosen on train", True, 0, 1),
    MetricInfo("d1.saturation", "share of the strategies with d1.auroc of .99 or more", None, 0, 1),
    MetricInfo("d1.alarms", "share of the strategies below .5 by more than two standard errors", None, 0, 1),
    MetricInfo("d1.collapses", "share of the strategies whose vectors are all the same", None, 0, 1),
    MetricInfo("d1.excess_over_confound", "d1.auroc minus AUROC of the best confound of the corpus", True, -1, 1),
    MetricInfo("d1.direction", "out-of-fold AUROC of the projection on one direction", True, 0, 1, variants=True),
    MetricInfo("sinks.passages", "share of the train passages with an attention sink at the layer", None, 0, 1),
    MetricInfo("sinks.left_out", "attention sinks that the strategy left out of the train passages", None, 0),
    MetricInfo("d2.scp", "Spearman correlation of strength and prompt-mean score, 0 included", True, -1, 1, version=2),
    MetricInfo("d2.scp_1", "score at the reference strength minus score unsteered", True, -1, 1),
    MetricInfo("d2.response_area", "mean rise of the score over the range of strengths", True, -1, 1),
    MetricInfo(
        "d2.best_gain",
        "gain at the best fluent strength, chosen and read on halves",
        True,
        -1,
        1,
        version=2,
        rank_decimals=2,
    ),
    MetricInfo("d2.best_strength", "the strength at which d2.best_gain is read", None, 0, version=2),
    MetricInfo("d2.fluency", "perplexity ratio to unsteered text at the reference strength", False, 0),
    MetricInfo("d2.prompted", "score of a chat model asked for the concept, minus asked for nothing", True, -1, 1),
    MetricInfo("d3.ld", "1 - neighbour's shift / target's shift, distant neighbour", True, version=2),
    MetricInfo("d3.lc", "1 - neighbour's shift / target's shift, close neighbour", True, version=2),
    MetricInfo("d3.robust_ld", "target's shift minus |distant neighbour's shift|", True, version=2),
    MetricInfo("d3.robust_lc", "target's shift minus |close neighbour's shift|", True, version=2),
    MetricInfo("d3.rep_ld", "cosine of the directions of concept and distant neighbour", False, -1, 1),
    MetricInfo("d3.rep_lc", "cosine of the directions of concept and close neighbour", False, -1, 1),
    MetricInfo("scorer.auroc", "AUROC of the scorer on held-out scorer documents", True, 0, 1),
    MetricInfo("scorer.ece", "expected calibration error of the scorer on held-out documents", False, 0, 1),
    MetricInfo("scorer.brier", "Brier score of the scorer on held-out documents", False, 0, 1),
    MetricInfo("scorer.positive_mean", "mean score of held-out positives cut to generation length", None, 0, 1),
    MetricInfo("scorer.negative_mean", "mean score of held-out negatives cut to generation length", None, 0, 1),
    MetricInfo("scorer.gate", "whether the scorer passes all three checks of its gate", True, version=2),
)
BOARD = BoardSpec(
    ranked=(
        "d1.auroc", "d1.auroc_test", "d1.auroc_nested", "d2.scp", "d2.best_gain", "d2.response_area.excess",
        "d3.robust_ld", "d3.robust_lc",
    ),
    shown=(
        "d1.auroc", "d1.auroc_test", "d1.excess_over_confound", "d2.best_gain", "d2.scp", "d3.robust_ld",
        "d3.robust_lc",
    ),
)  # fmt: skip
