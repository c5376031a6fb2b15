"""The planted suite: every strategy reads what its definition says, and a fault in pooling is found out."""

import json

import numpy as np
import pytest
from tests.planted.faults import FAULTS, Fault
from tests.planted.reading import Suite

from poolbench.pooling.registry import STRATEGIES
from poolbench_corpora.places.words import vectors_of
from poolbench_driver.suites.planted.judge import judge
from poolbench_driver.suites.planted.signals import SIGNALS, judged_strategies
from poolbench_extractor.encode import PassageTexts, encode
from poolbench_extractor.forward.capture import capture


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite()


@pytest.mark.lane(name="series")
def test_every_expectation_holds(suite: Suite) -> None:
    verdicts = suite.verdicts()
    assert len(verdicts) == sum(len(signal.wins) + len(signal.loses) for signal in SIGNALS)
    assert not [f"{v.strategy} on {v.signal}: {v.found}" for v in verdicts if not v.holds]


@pytest.mark.lane(name="series")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_out(suite: Suite, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.apply(monkeypatch)
    (verdict,) = suite.verdicts([fault.signal], [fault.strategy])
    assert not verdict.holds, verdict


def test_states_after_block_0_are_the_vectors_of_the_words(suite: Suite) -> None:
    (passage,) = encode(suite.decoder, PassageTexts(["a"], ["The garden slept. Anna saw each candle"]))
    states = capture(suite.decoder, [passage], [0]).states[0][0].numpy()
    words = ["the", "garden", "slept", ".", "anna", "saw", "each", "candle"]
    np.testing.assert_allclose(states[passage.context.real], vectors_of(words), atol=1e-6)


def test_expectations_name_strategies_that_exist_and_do_not_contradict() -> None:
    assert set(judged_strategies()) <= {spec.id for spec in STRATEGIES.all()}
    for signal in SIGNALS:
        assert not set(signal.wins) & set(signal.loses)


def test_what_the_judge_makes_of_rows() -> None:
    row = {"metric": "d1.auroc", "concept": "planted_end", "layer": 0}
    rows = [
        {**row, "strategy": "P1_last_token", "value": 0.95, "status": "ok"},
        {**row, "strategy": "W2_last_k", "value": 0.85, "status": "ok"},
        {**row, "strategy": "A1_mean", "value": 0.7, "status": "ok"},
        {**row, "strategy": "A2_max", "value": 0.6, "status": "ok"},
        {**row, "strategy": "L3_entity", "value": None, "status": "no_coverage"},
        {**row, "strategy": "A3_min", "value": None, "status": "failed"},
    ]
    held = {verdict.strategy: verdict.holds for verdict in judge(rows) if verdict.signal == "end"}
    assert held == {
        "P1_last_token": True,
        "W2_last_k": False,
        "A1_mean": False,
        "A2_max": True,
        "L3_entity": True,
        "A3_min": False,
    }
    missing = [verdict for verdict in judge([], ["A1_mean"]) if verdict.signal == "end"]
    assert [(verdict.found, verdict.holds) for verdict in missing] == [("not measured", False)]
    assert json.dumps([verdict.found for verdict in missing])
