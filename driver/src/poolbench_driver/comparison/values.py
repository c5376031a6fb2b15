"""Differences of values between two runs, over concepts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from poolbench.statistics import group_mean_interval, holm, paired_permutation_test
from poolbench.suites import metric_info
from poolbench_driver.comparison.cells import measured_pairs
from poolbench_driver.comparison.pairing import Pairing, Row


def value_changes(pairing: Pairing, num_resamples: int, seed: int) -> list[Row]:
    """Rows of value differences; within a metric the mean over strategies first, then each strategy."""
    by_metric: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for pair in measured_pairs(pairing):
        by_metric[pair[0]["metric"]].append(pair)
    rows: list[Row] = []
    for metric, pairs in by_metric.items():
        by_strategy: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
        for pair in pairs:
            by_strategy[pair[0]["strategy"] or ""].append(pair)
        lines = [_value_row(metric, name, found, num_resamples, seed) for name, found in sorted(by_strategy.items())]
        adjusted = holm(np.array([line["p"] for line in lines]))
        each = [{**line, "p_holm": float(p)} for line, p in zip(lines, adjusted, strict=True)]
        together = {**_value_row(metric, "*", pairs, num_resamples, seed), "p_holm": None}
        rows += [together, *each] if len(each) > 1 else each
    return rows


def _value_row(metric: str, strategy: str, pairs: Sequence[tuple[Row, Row]], num_resamples: int, seed: int) -> Row:
    """Mean difference over concepts: the cells of a concept are averaged first, because they are not independent."""
    by_concept: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for a, b in pairs:
        by_concept[a["concept"] or ""].append((a["value"], b["value"]))
    means_N2 = np.array([np.mean(found, axis=0) for _, found in sorted(by_concept.items())])
    differences = means_N2[:, 1] - means_N2[:, 0]
    interval = group_mean_interval(differences, num_resamples=num_resamples, seed=seed) or (None, None)
    test = paired_permutation_test(differences, num_resamples=num_resamples, seed=seed)
    return {
        "metric": metric,
        "strategy": strategy,
        "higher_is_better": metric_info(metric).higher_is_better,
        "first": float(means_N2[:, 0].mean()),
        "second": float(means_N2[:, 1].mean()),
        "difference": float(differences.mean()),
        "ci_low": interval[0],
        "ci_high": interval[1],
        "p": test.p_value,
        "concepts": len(differences),
        "cells": len(pairs),
    }
