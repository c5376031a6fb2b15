"""Temperature, calibration error and the gate: by hand, and each part fails for its own reason."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from poolbench.contracts.tables import TEXTS, table_from_rows
from poolbench.errors import InputError
from poolbench.steps.scorer import GateParams
from poolbench.word_rules import word_rules
from poolbench_scorer.classifiers.scorer import Scorer
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.gate import Labelled, cut_passages, degenerate_level, gate_measures, judge_scorer, relabelled
from poolbench_scorer.training.examples import read_passages
from poolbench_scorer.training.report import (
    TEMPERATURES,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    grouped_auroc,
)

PARAMS = GateParams(num_bootstrap=200)
RULE = GateParams(num_bootstrap=200, rule=1)
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


def by_rule(num_positive: int, num_negative: int) -> Labelled:
    """Continuations whose passages have the wrong class; the rule of contrast labels them."""
    lines = [POSITIVE] * num_positive + [NEGATIVE.replace("while", "as")] * num_negative
    right = np.repeat([1, 0], [num_positive, num_negative])
    mislabelled = Labelled([f"{line} {row}" for row, line in enumerate(lines)], 1 - right, np.arange(len(lines)))
    return relabelled(mislabelled, word_rules()["contrast"], others=False)


def test_a_rule_labels_continuations_whatever_they_continue() -> None:
    texts_by_rule = by_rule(30, 31)
    assert texts_by_rule.labels.tolist() == [1] * 30 + [0] * 31
    measures = gate_measures(by(intact_concept), texts(), texts_by_rule, RULE)
    part_b, last = measures[1], measures[-1]
    assert (part_b.value, part_b.n, part_b.params["rule"]) == (1.0, 61, 1)
    assert (last.value, last.reason) == (1.0, None)
    measures = gate_measures(by(lambda line: not intact_concept(line)), texts(), texts_by_rule, RULE)
    assert measures[1].value == 0.0 and "part b: lower bound 0.000" in (measures[-1].reason or "")


def test_texts_of_no_class_keep_theirs_or_are_left_out() -> None:
    lines = ["In 1990, 3 of 12 paid.", "Many paid.", "They paid.", "They left."]
    mixed = Labelled(lines, np.array([0, 1, 1, 0]), np.arange(4))
    with_others, alone = (relabelled(mixed, word_rules()["numerical_precision"], others=both) for both in (True, False))
    assert (with_others.texts, with_others.labels.tolist()) == (lines, [1, 0, 1, 0])
    assert (alone.texts, alone.labels.tolist(), alone.groups.tolist()) == (lines[:2], [1, 0], [0, 1])


def test_with_too_few_of_a_class_by_rule_the_other_parts_decide_and_the_reason_says_so() -> None:
    measures = gate_measures(by(intact_concept), texts(), by_rule(29, 40), RULE)
    reason = "29 positive and 40 negative texts; need 30 of each"
    assert (measures[1].value, measures[1].status, measures[1].reason) == (None, "too_few", reason)
    assert (measures[-1].value, measures[-1].reason) == (1.0, f"part b: {reason}")
    measures = gate_measures(lambda lines: np.full(len(lines), 0.5), texts(), by_rule(29, 40), RULE)
    assert measures[-1].value == 0.0 and "part a: lower bound" in (measures[-1].reason or "")


def test_the_rule_labels_cut_passages_too(minilm_scorer: Scorer, test_passages: pa.Table) -> None:
    """A positive whose cut shows no contrast is a negative text."""
    none = table_from_rows([], TEXTS)
    params = GateParams(num_tokens=12, num_bootstrap=100, rule=1)
    rows = judge_scorer(minilm_scorer, test_passages, none, params).to_pylist()
    cut = cut_passages(read_passages(test_passages, "test"), minilm_scorer.tokens, 12, seed=0)
    shown = np.array([word_rules()["contrast"].label(text) for text in cut.texts])
    assert 10 <= shown.sum() < cut.labels.sum() and not shown[cut.labels == 0].any()
    margins = score_texts({"contrast": minilm_scorer}, cut.texts)["contrast"]
    assert (rows[0]["n"], rows[0]["value"]) == (60, pytest.approx(roc_auc_score(shown, margins)))
    means = {row["metric"]: row["value"] for row in rows if row["metric"].endswith("_mean")}
    assert means["scorer.positive_mean"] == pytest.approx(margins[shown == 1].mean())


@pytest.mark.parametrize(("concept", "rule", "here"), [("contrast", 2, "version 1"), ("deference", 1, "none")])
def test_another_version_of_the_rule_is_refused(
    minilm_scorer: Scorer, test_passages: pa.Table, concept: str, rule: int, here: str
) -> None:
    scorer = replace(minilm_scorer, concept=concept)
    with pytest.raises(InputError, match=f"word rule {rule} of {concept}: this service has {here}"):
        judge_scorer(scorer, test_passages, table_from_rows([], TEXTS), GateParams(rule=rule))


def test_a_class_that_no_cut_passage_shows_is_named(minilm_scorer: Scorer, test_passages: pa.Table) -> None:
    scorer = replace(minilm_scorer, concept="legal_formality")
    (row,) = judge_scorer(scorer, test_passages, table_from_rows([], TEXTS), GateParams(rule=1)).to_pylist()
    assert row["value"] == 0 and "no passage of one class is left by the rule" in row["reason"]


def test_the_lower_end_of_the_interval_decides_about_separation() -> None:
    """Of 40 texts the scores of eight are wrong: an AUROC of .8."""

    def score(lines: list[str]) -> np.ndarray:
        wrong = np.array([line.endswith(("0", "1")) for line in lines])
        right = by(intact_concept)(lines)
        return np.where(wrong, (1 - right).round(1), right)

    part_a, part_b, *_ = gate_measures(score, texts(), texts(), PARAMS)
    assert part_a.value == pytest.approx(0.8) and PARAMS.min_continuation_auroc < part_a.ci_low < 0.75 < part_a.ci_high
    assert (part_a.details["passed"], part_b.details["passed"]) == (False, True)


def test_part_a_may_equal_its_bound_and_part_b_must_exceed_it() -> None:
    strict = PARAMS.model_copy(update={"min_corpus_auroc": 1.0, "min_continuation_auroc": 1.0})
    part_a, part_b, *_ = gate_measures(by(intact_concept), texts(), texts(), strict)
    assert part_a.ci_low == part_b.ci_low == 1
    assert (part_a.details["passed"], part_b.details["passed"]) == (True, False)


def test_rows_carry_bounds_counts_and_means() -> None:
    measures = gate_measures(by(intact_concept), texts(), texts(), PARAMS)
    assert [one.params.get("part") for one in measures] == ["a", "b", *["c"] * 4, *[None] * 4, "verdict"]
    part_a, means = measures[0], measures[6:8]
    assert (part_a.value, part_a.n, part_a.num_groups) == (1.0, 40, 40)
    assert part_a.params["min_lower"] == 0.75
    assert {one.metric: (one.value, one.n) for one in means} == {
        "scorer.positive_mean": (pytest.approx(0.9), 20), "scorer.negative_mean": (pytest.approx(0.1), 20)
    }  # fmt: skip
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
