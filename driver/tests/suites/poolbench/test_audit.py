"""D1 beyond a confound, by hand."""

import numpy as np
import pytest

from poolbench.contracts.measures import Measure
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.audit import excess_over_confound


def drawn(num_groups: int = 30, seed: int = 0) -> dict[str, np.ndarray]:
    """Matched pairs in three folds: a good probe, a weak confound with ties."""
    rng = np.random.default_rng(seed)
    labels = np.tile([1, 0], num_groups)
    return {
        "labels": labels,
        "scores": labels + rng.normal(size=2 * num_groups),
        "confound_scores": np.round(0.5 * labels + rng.normal(size=2 * num_groups)),
        "folds": np.repeat(np.arange(num_groups) % 3, 2),
        "groups": np.repeat(np.arange(num_groups), 2),
    }


def excess(case: dict[str, np.ndarray], num_resamples: int = 200) -> Measure:
    weights = group_weights(case["groups"], num_resamples, 0)
    return excess_over_confound(**case, weights_Rn=weights, confound="length")


def counted(case: dict[str, np.ndarray], scores: np.ndarray, copies: np.ndarray) -> float:
    """AUROC of a resample: each pair of passages of one fold, as often as copies of them are not of one draw."""
    right = total = 0.0
    for i in np.flatnonzero(case["labels"] == 1):
        for j in np.flatnonzero(case["labels"] == 0):
            if case["folds"][i] == case["folds"][j]:
                same = case["groups"][i] == case["groups"][j]
                weight = copies[i] if same else copies[i] * copies[j]
                right += weight * (0.5 if scores[i] == scores[j] else scores[i] > scores[j])
                total += weight
    return right / total


def test_value_and_interval_are_those_of_the_paired_resamples() -> None:
    case = drawn()
    weights = group_weights(case["groups"], 40, 0)
    gaps = [
        counted(case, case["scores"], row) - counted(case, case["confound_scores"], row)
        for row in (np.ones(60), *weights)
    ]
    found = excess_over_confound(**case, weights_Rn=weights, confound="length")
    assert found.value == pytest.approx(gaps[0])
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(np.percentile(gaps[1:], [2.5, 97.5])))
    assert found.details["confound"] == "length"
    assert found.details["confound_auroc"] == pytest.approx(counted(case, case["confound_scores"], np.ones(60)))


def test_a_probe_that_reads_the_confound_has_no_excess() -> None:
    case = drawn()
    found = excess({**case, "scores": case["confound_scores"]})
    assert (found.value, found.ci_low, found.ci_high) == (0.0, 0.0, 0.0)


def test_pairing_makes_the_interval_narrower_than_that_of_independent_scores() -> None:
    case = drawn(num_groups=100)
    noise = np.random.default_rng(1).normal(scale=0.05, size=200)
    close = excess({**case, "confound_scores": case["scores"] + noise})
    apart = excess(case)
    assert close.ci_high - close.ci_low < (apart.ci_high - apart.ci_low) / 3


def test_without_scores_or_classes_it_is_null_with_a_reason() -> None:
    case = drawn()
    lost = excess({**case, "scores": np.where(case["folds"] == 0, np.nan, case["scores"])})
    assert (lost.value, lost.status) == (None, Status.NOT_CONVERGED)
    one = excess({**case, "labels": np.ones(60, dtype=int)})
    assert (one.value, one.status) == (None, Status.ONE_CLASS)
    assert lost.reason and one.reason
