"""Metadata of each metric: version, direction of goodness and bounds."""

from collections import Counter
from dataclasses import replace
from functools import cache

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import MetricInfo

#: Figures that several suites have: ranks, and what the prober says about tasks of any kind.
COMMON = (
    MetricInfo("probe.macro_f1", "mean F1 over the classes, on the test split", True, 0, 1),
    MetricInfo("probe.accuracy", "share of correct predictions on the test split", True, 0, 1),
    MetricInfo("probe.pearson", "Pearson correlation of prediction and value on the test split", True, -1, 1),
    MetricInfo("probe.selectivity", "score of the probe minus score of its control task", True),
    MetricInfo("probe.collapsed", "share of the seeds whose probe predicts one value for all", False, 0, 1),
    MetricInfo("probe.left_out", "number of instances without a vector", False, 0),
    MetricInfo("probe.seen_share", "share of the test instances that are whole in train too", None, 0, 1),
    MetricInfo("probe.macro_f1_unseen", "mean F1 over the classes, on the other test instances", True, 0, 1),
    MetricInfo("probe.pearson_unseen", "Pearson correlation on the other test instances", True, -1, 1),
    MetricInfo(
        "probe.compression", "uniform over online code length, regularisation chosen a block", True, 0, version=3
    ),
    MetricInfo("probe.compression_floor", "compression by the class frequencies alone: log2 K / entropy", None, 1),
    MetricInfo("probe.compression_unregularised", "the same of one fixed probe, C = 1", True, 0, version=2),
    MetricInfo("probe.compression_published", "bits over nats of a double softmax, as released", True, 0, version=2),
    MetricInfo("probe.online_bits", "online code length of the training labels", False, 0, version=3),
    MetricInfo("probe.uniform_bits", "code length of the training labels without vectors", None, 0),
    MetricInfo("rank.mean", "mean rank of a strategy over the concepts, 1 is best", False, 1),
    MetricInfo("rank.layer_stability", "Spearman correlation of mean ranks at two layers", None, -1, 1),
)
#: What may follow the id of a metric, and what it means.
SUFFIXES = {
    ".excess": "in excess of the mean of the null directions",
    ".null_rank": "rank among the null directions, 1 is above all of them",
    ".null_p95": "95th percentile of the null directions",
    ".excess_neutral": "in excess of the mean of the neutral fine-tunes",
    ".rank_neutral": "rank among the neutral fine-tunes, 1 is above all of them",
    ".excess_random": "in excess of the mean of random changes of equal norm",
    ".rank_random": "rank among random changes of equal norm, 1 is above all of them",
}


@cache
def all_metrics() -> dict[str, MetricInfo]:
    """Return the metrics of every suite by id. Raise ConfigError if two suites declare the same id."""
    declared = [*COMMON, *(metric for suite in SUITES.all() for metric in suite.metrics)]
    if twice := sorted(name for name, number in Counter(metric.id for metric in declared).items() if number > 1):
        raise ConfigError(f"two suites declare {', '.join(twice)}: begin the ids of a suite's metrics with its name")
    return {metric.id: metric for metric in declared}


def metric_info(metric: str) -> MetricInfo:
    """Return the metadata of a metric id, with or without a suffix such as `.excess`.

    Raise UnknownNameError for a metric that no suite declares: without a direction of goodness it is not ranked.
    """
    for suffix, meaning in SUFFIXES.items():
        if metric.endswith(suffix):
            base = metric_info(metric.removesuffix(suffix))
            better = None if suffix == ".null_p95" else base.higher_is_better if suffix.startswith(".excess") else False
            summary, decimals = f"{base.summary}, {meaning}", base.rank_decimals if suffix == ".excess" else None
            return MetricInfo(metric, summary, better, version=base.version, rank_decimals=decimals)
    metrics, family = all_metrics(), metric.rpartition(".")[0]
    if family in metrics and metrics[family].variants:
        return replace(metrics[family], id=metric)
    if metric not in metrics:
        raise UnknownNameError("metric", metric, metrics)
    return metrics[metric]


def is_higher_better(metric: str) -> bool:
    """Return whether high values of a metric are good. Raise ConfigError if neither high nor low values are good."""
    better = metric_info(metric).higher_is_better
    if better is None:
        raise ConfigError(f"{metric} has no direction of goodness, so that nothing can be ranked by it")
    return better
