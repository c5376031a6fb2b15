"""Metadata of each metric: version, direction of goodness, unit and bounds."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MetricInfo:
    """Metadata of one metric."""

    id: str
    summary: str
    higher_is_better: bool | None  # none for figures that are neither (a chosen strength, a chance check)
    low: float | None = None  # smallest possible value; None if unbounded
    high: float | None = None  # largest possible value; None if unbounded
    version: int = 1  # raised when the definition changes


_METRICS = (
    MetricInfo("d1.auroc", "out-of-fold AUROC of the linear probe, within-fold pairs", True, 0, 1),
    MetricInfo("d1.auroc_test", "AUROC on the test split of the probe fitted on train", True, 0, 1),
    MetricInfo("d1.within_pair", "share of matched pairs that the probe puts in order, ties .5", True, 0, 1),
    MetricInfo("d1.selectivity", "d1.auroc minus AUROC of word-presence control tasks", True, -1, 1),
    MetricInfo("d1.auroc_permuted", "mean AUROC with permuted labels: the chance check", None, 0, 1),
    MetricInfo("d1.auroc_domain", "AUROC on a domain that the probe never saw", True, 0, 1),
    MetricInfo("d1.auroc_sensitivity", "d1.auroc at another inverse regularisation C", True, 0, 1),
    MetricInfo("d1.auroc_seed", "d1.auroc with the folds of another seed", True, 0, 1),
    MetricInfo("d1.seed_spread", "standard deviation of d1.auroc over the seeds of the folds", False, 0),
    MetricInfo("d1.auroc_nested", "d1.auroc with the layer chosen inside the training folds", True, 0, 1),
    MetricInfo("d1.auroc_test_nested", "d1.auroc_test at the layer chosen on train", True, 0, 1),
    MetricInfo("d1.saturation", "share of the strategies with d1.auroc of .99 or more", None, 0, 1),
    MetricInfo("d1.alarms", "share of the strategies below .5 by more than two standard errors", None, 0, 1),
    MetricInfo("d1.collapses", "share of the strategies whose vectors are all the same", None, 0, 1),
    MetricInfo("d1.excess_over_confound", "d1.auroc minus AUROC of the best confound of the corpus", True, -1, 1),
    MetricInfo("d1.direction", "out-of-fold AUROC of the projection on one direction", True, 0, 1),
    MetricInfo("sinks.passages", "share of the train passages with an attention sink at the layer", None, 0, 1),
    MetricInfo("sinks.left_out", "attention sinks that the strategy left out of the train passages", None, 0),
    MetricInfo("d2.scp", "Spearman correlation of strength and prompt-mean score, 0 included", True, -1, 1, version=2),
    MetricInfo("d2.scp_1", "score at the reference strength minus score unsteered", True, -1, 1),
    MetricInfo("d2.response_area", "mean rise of the score over the range of strengths", True, -1, 1),
    MetricInfo("d2.best_gain", "gain at the best fluent strength, chosen and read on halves", True, -1, 1, version=2),
    MetricInfo("d2.best_strength", "the strength at which d2.best_gain is read", None, 0, version=2),
    MetricInfo("d2.fluency", "perplexity ratio to unsteered text at the reference strength", False, 0),
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
    MetricInfo("probe.macro_f1", "mean F1 over the classes, on the test split", True, 0, 1),
    MetricInfo("probe.accuracy", "share of correct predictions on the test split", True, 0, 1),
    MetricInfo("probe.pearson", "Pearson correlation of prediction and value on the test split", True, -1, 1),
    MetricInfo("probe.selectivity", "score of the probe minus score of its control task", True),
    MetricInfo("probe.collapsed", "share of the seeds whose probe predicts one value for all", False, 0, 1),
    MetricInfo(
        "probe.compression", "uniform over online code length, regularisation chosen a block", True, 0, version=2
    ),
    MetricInfo("probe.compression_unregularised", "the same of one fixed probe, C = 1", True, 0),
    MetricInfo("probe.compression_published", "bits over nats of a double softmax, as released", True, 0),
    MetricInfo("probe.online_bits", "online code length of the training labels", False, 0, version=2),
    MetricInfo("probe.uniform_bits", "code length of the training labels without vectors", None, 0),
    MetricInfo("rank.mean", "mean rank of a strategy over the concepts, 1 is best", False, 1),
    MetricInfo("rank.layer_stability", "Spearman correlation of mean ranks at two layers", None, -1, 1),
)
METRICS: dict[str, MetricInfo] = {metric.id: metric for metric in _METRICS}

_SUFFIXES = {
    ".excess": "in excess of the mean of the null directions",
    ".null_rank": "rank among the null directions, 1 is above all of them",
    ".null_p95": "95th percentile of the null directions",
}


def metric_info(metric: str) -> MetricInfo:
    """Return the metadata of a metric id, with or without a suffix such as `.excess`.

    An unknown id, e.g. of another suite, gets metadata without direction of goodness.
    """
    for suffix, meaning in _SUFFIXES.items():
        if metric.endswith(suffix):
            return _derived(metric_info(metric.removesuffix(suffix)), suffix, meaning)
    if metric.startswith("d1.direction."):
        return replace(METRICS["d1.direction"], id=metric)
    return METRICS.get(metric, MetricInfo(metric, metric, None))


def _derived(base: MetricInfo, suffix: str, meaning: str) -> MetricInfo:
    better = {".excess": base.higher_is_better, ".null_rank": False, ".null_p95": None}[suffix]
    return MetricInfo(f"{base.id}{suffix}", f"{base.summary}, {meaning}", better, version=base.version)
