"""Temperature, calibration error and the gate: by hand, and each part fails for its own reason."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from poolbench.steps.scorer import GateParams
from poolbench_scorer.gate import Labelled, degenerate_level, gate_measures
from poolbench_scorer.training.report import (
    TEMPERATURES,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    grouped_auroc,
)

PARAMS = GateParams(num_bootstrap=200)
POSITIVE = "the boat stayed in port however the crew went out to sea and came home at night"
NEGATIVE = "the boat stayed in port while the crew went out to sea and came home at night"
Scoring = Callable[[list[str]], np.ndarray]


def texts(num: int = 40) -> Labelled:
    """Equal numbers of both classes; the running number keeps texts apart."""
    lines = [f"{POSITIVE if row % 2 else NEGATIVE} {row}" for row in range(num)]
    return Labelled(lines, np.arange(num) % 2, np.arange(num))


def by(rule: Callable[[str], bool]) -> Scoring:
    """Scores of .9 where the rule holds, else .1, with a tiny spread by running number."""
    return lambda lines: np.array([0.9 if rule(line) else 0.1 for line in lines])


def intact_concept(line: str) -> bool:
    return "in port however the crew" in line and line.count("however") == 1


def run(score: Scoring, cut: Labelled | None = None, continued: Labelled | None = None) -> tuple[float, str]:
    measures = gate_measures(score, cut or texts(), continued or texts(), PARAMS)
    assert measures[-1].params == {"part": "verdict"}
    return measures[-1].value, measures[-1].reason or ""


def test_a_scorer_that_reads_sentences_passes_and_a_constant_one_fails_everything() -> None:
    value, reason = run(by(intact_concept))
    assert (value, reason) == (1.0, "")
    value, reason = run(lambda lines: np.full(len(lines), 0.5))
    assert value == 0.0
    assert all(part in reason for part in ("part a:", "part b:", "part c shuffled", "part c looping"))


def test_scorers_of_words_and_of_loops_fail_part_c_only() -> None:
    value, reason = run(by(lambda line: "however" in line))
    assert value == 0.0
    assert "part c shuffled both" in reason
    assert "part a" not in reason and "part b" not in reason and "negatives" not in reason

    def loops(line: str) -> bool:
        words = line.split()
        return intact_concept(line) or len(set(words)) < 0.7 * len(words)

    value, reason = run(by(loops))
    assert value == 0.0
    assert "part c looping negatives" in reason and "shuffled" not in reason


def test_continuations_that_carry_nothing_or_are_too_few_fail_part_b_only() -> None:
    even = Labelled([f"{NEGATIVE} {row}" for row in range(40)], np.arange(40) % 2, np.arange(40))
    value, reason = run(by(intact_concept), continued=even)
    assert value == 0.0
    assert reason.startswith("part b: lower bound") and ";" not in reason
    value, reason = run(by(intact_concept), continued=texts(12))
    assert value == 0.0
    assert reason == "part b: 6 positive and 6 negative texts; need 10 of each"


def test_rows_carry_bounds_counts_and_means() -> None:
    measures = gate_measures(by(intact_concept), texts(), texts(), PARAMS)
    assert [one.params.get("part") for one in measures] == ["a", "b", *["c"] * 4, *[None] * 4, "verdict"]
    part_a, means = measures[0], measures[6:8]
    assert (part_a.value, part_a.n, part_a.num_groups) == (1.0, 40, 40)
    assert part_a.params["min_lower"] == 0.75
    assert {one.metric: one.value for one in means} == pytest.approx(
        {"scorer.positive_mean": 0.9, "scorer.negative_mean": 0.1}
    )
    # half of the texts at .9 with label 1, half at .1 with label 0: each .1 away from its label
    calibration = {one.metric: one.value for one in measures[8:10]}
    assert calibration == pytest.approx({"scorer.ece": 0.1, "scorer.brier": 0.01})
    assert measures[8].params == {"calibrated": True, "on": "test"}


def test_level_by_hand() -> None:
    labels = np.array([1, 1, 0, 0])
    intact, broken = np.array([0.9, 0.7, 0.3, 0.1]), np.array([0.6, 0.5, 0.2, 0.3])
    ones = np.ones((1, 4))
    # positives .8, negatives .2: level = (.4 - .2) / .6 over all, (.25 - .2) / .6 over negatives
    assert degenerate_level(broken, intact, labels, ones, labels >= 0) == pytest.approx([1 / 3])
    assert degenerate_level(broken, intact, labels, ones, labels == 0) == pytest.approx([1 / 12])


def overconfident(seed: int, num: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Margins 2.5 times too large, and labels."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 2, num)
    return 2.5 * honest, (rng.random(num) < expit(honest)).astype(int)


@pytest.mark.parametrize("seed", range(4))
def test_temperature_is_sklearns_slope(seed: int) -> None:
    """A logistic regression on the margin alone, without intercept or penalty, has slope 1/T."""
    margins, labels = overconfident(seed)
    oracle = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(margins[:, None], labels)
    assert fit_temperature(margins, labels) == pytest.approx(1 / float(oracle.coef_[0, 0]), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_brier_and_calibration_error_agree_with_sklearn(seed: int) -> None:
    margins, labels = overconfident(seed)
    probabilities = expit(margins)
    assert brier_score(probabilities, labels) == pytest.approx(brier_score_loss(labels, probabilities))
    # 400 distinct values in 10 bins of 40: the mean gap of sklearn's quantile bins
    frequency, mean = calibration_curve(labels, probabilities, n_bins=10, strategy="quantile")
    assert expected_calibration_error(probabilities, labels) == pytest.approx(np.abs(frequency - mean).mean())


@pytest.mark.parametrize("seed", range(8))
def test_calibration_never_raises_the_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    margins, labels = rng.normal(0, 3, 60), rng.integers(0, 2, 60)
    temperature = fit_temperature(margins, labels)
    before, after = (expected_calibration_error(expit(margins / t), labels) for t in (1.0, temperature))
    assert after <= before


def test_calibration_by_hand_does_not_ask_for_certainty() -> None:
    probabilities = np.array([0.1, 0.2, 0.8, 0.9])
    labels = np.array([0, 1, 1, 1])
    # two bins: |.15 - .5| and |.85 - 1|, each half of the weight
    assert expected_calibration_error(probabilities, labels, num_bins=2) == pytest.approx((0.35 + 0.15) / 2)
    margins = np.array([-2.0, -1.0, 1.0, 2.0])
    assert fit_temperature(margins, np.array([0, 0, 1, 1])) >= TEMPERATURES[0]


def test_pairs_of_copies_of_one_group_do_not_count() -> None:
    """Every positive is above its own negative, and between pairs all is chance: copies would lift each resample."""
    rng = np.random.default_rng(1)
    base = np.repeat(rng.normal(0, 1, 12), 2)
    labels, groups = np.tile([1, 0], 12), np.repeat(np.arange(12), 2)
    found = grouped_auroc(base + 0.01 * labels, labels, groups, num_bootstrap=4000, seed=0)
    assert found.value == pytest.approx(roc_auc_score(labels, base + 0.01 * labels))
    assert found.interval is not None
    assert np.mean(found.interval) == pytest.approx(found.value, abs=0.01)


def test_interval_widens_when_groups_carry_the_spread() -> None:
    rng = np.random.default_rng(2)
    labels = np.tile([0, 1], 100)
    scores = labels + np.repeat(rng.normal(0, 2, 20), 10) * np.where(labels == 1, 1, -1)
    alone = grouped_auroc(scores, labels, np.arange(200), num_bootstrap=500, seed=0)
    grouped = grouped_auroc(scores, labels, np.repeat(np.arange(20), 10), num_bootstrap=500, seed=0)
    assert alone.value == grouped.value
    assert alone.interval is not None and grouped.interval is not None
    assert np.diff(grouped.interval) > 1.5 * np.diff(alone.interval)
