"""The planted suite: every strategy reads what its definition says, and a fault in pooling is found out."""

import json

import numpy as np
import pytest
from tests.planted.faults import FAULTS, Fault
from tests.planted.reading import Suite

from poolbench.errors import InputError
from poolbench.pooling.registry import STRATEGIES
from poolbench_corpora.places.passages import TEXTS, planted_passages
from poolbench_corpora.places.words import TWINS, vectors_of
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


@pytest.mark.parametrize("name", TEXTS)
def test_passages_of_a_pair_share_their_nouns_and_documents(name: str) -> None:
    rows = planted_passages(name).to_pylist()
    assert len({row["text"] for row in rows}) == len(rows)
    for positive, negative in zip(rows[::2], rows[1::2], strict=True):
        assert (positive["label"], negative["label"]) == (1, 0)
        assert positive["pair_id"] == negative["pair_id"] and positive["doc_id"] == negative["doc_id"]
        assert positive["token_count"] == negative["token_count"] and positive["split"] == negative["split"]
    assert rows == planted_passages(name).to_pylist()
    assert rows != planted_passages(name, seed=1).to_pylist()


def test_exchanged_words_stand_in_both_classes_equally_often() -> None:
    marked = {word for pair in TWINS["noun"] for word in pair}
    for name in ("start", "middle", "end", "edge", "sentence", "syntax"):
        rows = planted_passages(name).to_pylist()
        words = [" ".join(row["text"] for row in rows[side::2]).lower().replace(".", "").split() for side in (0, 1)]
        counts = [sorted(word for word in found if word in marked) for found in words]
        assert counts[0] == counts[1] and len(counts[0]) == len(rows)


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(InputError, match="no planted signal 'loudness'"):
        planted_passages("loudness")


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
