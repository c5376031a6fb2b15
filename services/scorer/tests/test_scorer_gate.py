"""The gate with hand-made scoring functions: each part fails for its own reason, and only then."""

from collections.abc import Callable

import numpy as np
import pytest

from poolbench.steps.scorer import GateParams
from poolbench_scorer.gate import Labelled, degenerate_level, gate_measures, verdict

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


def test_a_scorer_that_reads_sentences_passes() -> None:
    value, reason = run(by(intact_concept))
    assert (value, reason) == (1.0, "")


def test_a_scorer_of_words_fails_part_c_only() -> None:
    value, reason = run(by(lambda line: "however" in line))
    assert value == 0.0
    assert "part c shuffled both" in reason
    assert "part a" not in reason and "part b" not in reason and "negatives" not in reason


def test_a_scorer_that_likes_loops_fails_part_c() -> None:
    def loops(line: str) -> bool:
        words = line.split()
        return intact_concept(line) or len(set(words)) < 0.7 * len(words)

    value, reason = run(by(loops))
    assert value == 0.0
    assert "part c looping negatives" in reason and "shuffled" not in reason


def test_a_constant_scorer_fails_everything() -> None:
    value, reason = run(lambda lines: np.full(len(lines), 0.5))
    assert value == 0.0
    assert all(part in reason for part in ("part a:", "part b:", "part c shuffled", "part c looping"))


def test_continuations_that_carry_nothing_fail_part_b_only() -> None:
    even = Labelled([f"{NEGATIVE} {row}" for row in range(40)], np.arange(40) % 2, np.arange(40))
    value, reason = run(by(intact_concept), continued=even)
    assert value == 0.0
    assert reason.startswith("part b: lower bound") and ";" not in reason


def test_too_few_continuations_cannot_pass() -> None:
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


def test_verdict_names_what_failed() -> None:
    measures = gate_measures(by(lambda line: False), texts(), texts(), PARAMS)
    result = verdict(measures[:1])
    assert result.value == 0.0
    assert result.reason == "part a: lower bound 0.500 of the AUROC misses 0.75"
