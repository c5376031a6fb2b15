"""The first lines of the page of real text, against figures by hand."""

from typing import Any

import pytest
from recipes.real_text.__main__ import steered
from recipes.real_text.answers import moved_by_sinks, published_orders
from recipes.real_text.pairs import read_pairs

STRATEGIES = ("A1_mean", "A2_max", "P1_last_token", "W2_last_k", "L3_entity")
CONCEPTS = ("causation", "contrast", "hedging", "narrative", "planning")
SAME = {"suite": "poolbench", "protocol": "corrected", "budget": "small", "model": "m", "dataset_revision": "d"}


def cells(metric: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows in which the strategies have this order, best first, for every concept."""
    rows: list[dict[str, Any]] = []
    for number, concept in enumerate(CONCEPTS):
        for place, name in enumerate(order):
            row = {"concept": concept, "strategy": name, "metric": metric, "value": 0.9 - 0.05 * place - 0.01 * number}
            rows.append(row | SAME | {"status": "ok", "layer": 1, "scorer": None, "params": "{}"})
    return [*rows, {**SAME, "metric": "rank.mean", "params": f'{{"of": "{metric}"}}'}]


@pytest.fixture(autouse=True)
def whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows by hand lack columns that tell cells apart; here concept, strategy and metric do."""
    monkeypatch.setattr("poolbench_driver.comparison.pairing.IDENTITY", ("concept", "strategy", "metric"))


def test_the_published_order_is_compared_by_our_names() -> None:
    said = dict(line.split(": ", 1) for line in published_orders(cells("d1.auroc", STRATEGIES)))
    assert set(said) == {"`d1.auroc`", "`d2.scp`", "`d3.ld`", "`d3.lc`"}
    assert said["`d2.scp`"] == "no two strategies have a value in both."
    assert "Spearman's correlation of the mean ranks" in said["`d1.auroc`"] and "5 strategies" in said["`d1.auroc`"]


def test_what_sinks_move_is_told_by_rank_and_by_value() -> None:
    turned = ("L3_entity", "A2_max", "P1_last_token", "W2_last_k", "A1_mean")
    said, lines = moved_by_sinks(cells("d1.auroc", STRATEGIES), cells("d1.auroc", turned))
    assert said[0].endswith(", 2 of 5 strategies move by 2 ranks or more in D1: `A1_mean`, `L3_entity`.")
    assert "correlation of the mean ranks" in said[1]
    assert lines[0][:3] == ["A1_mean", "1.0", "5.0"] and lines[0][3].startswith("+4.0")
    assert lines[0][4:6] == ["0.880", "0.680"] and lines[0][6].startswith("-0.200")


def test_only_gains_of_concepts_whose_scorer_passed_are_steered() -> None:
    gains = cells("d2.best_gain", STRATEGIES[:2])
    gate = {"metric": "scorer.gate", "scorer": "hedging", "params": '{"part": "verdict"}', "value": 1.0}
    assert {row["concept"] for row in steered([*gains, gate])} == {"hedging"}


def test_pairs_have_the_grammatical_sentence_first() -> None:
    pairs = read_pairs(1)
    assert len(pairs) == 59 and len(set(pairs)) == 59
    assert ("Who should Derek hug after shocking Richard?", "Who should Derek hug Richard after shocking?") in pairs
