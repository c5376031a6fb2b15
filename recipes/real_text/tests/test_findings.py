"""What the page of real text says about its concepts, against figures by hand."""

from typing import Any

from recipes.real_text.findings import findings


def d1(concept: str, strategy: str, layer: int, value: float | None, metric: str = "d1.auroc") -> dict[str, Any]:
    return {
        "concept": concept,
        "strategy": strategy,
        "layer": layer,
        "metric": metric,
        "value": value,
        "scorer": None,
        "params": "{}",
    }


def test_concepts_that_rank_strategies_are_told_from_saturated_ones() -> None:
    rows: list[dict[str, Any]] = [d1("easy", name, 0, 0.99) for name in ("A1_mean", "A2_max", "P1_last_token")]
    for concept, values in {"hard": (0.9, 0.7, 0.6), "other": (0.8, 0.6, 0.7)}.items():
        for name, value in zip(("A1_mean", "A2_max", "P1_last_token"), values, strict=True):
            rows += [d1(concept, name, 0, value - 0.02), d1(concept, name, 1, value + 0.02), d1(concept, name, 2, None)]
    rows.append(d1("hard", "A2_max", 0, 0.25, "d1.excess_over_confound"))
    rows.append(d1("hard", "A1_mean", 0, 0.2, "d1.excess_over_confound"))
    gates = {"easy": 1.0, "hard": 0.0}
    for scorer, value in gates.items():
        rows.append({"metric": "scorer.gate", "scorer": scorer, "params": '{"part": "verdict"}', "value": value})
        rows.append({"metric": "scorer.gate", "scorer": scorer, "params": '{"part": "a"}', "value": 1.0})
    audit: list[dict[str, Any]] = [
        {"concept": "easy", "verdict": "confounded"},
        {"concept": "easy", "verdict": "confounded"},
        {"concept": "hard", "verdict": "pass"},
        {"concept": "other", "verdict": None},
    ]
    found = findings(rows, audit)
    assert found.saturated == ["easy"] and found.gated == ["easy"]
    assert found.verdicts == {"confounded": 1, "pass": 1, "not audited": 1}
    assert found.lines()[1:] == [
        ["hard", "A1_mean", "0.90", "0.90", "0.60", "0.25"],
        ["other", "A1_mean", "0.80", "0.80", "0.70", ""],
    ]
