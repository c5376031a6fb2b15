"""Checks of a concept from its cells of D1, and the passages that probes had right, by hand."""

import pyarrow as pa
import pytest

from poolbench.contracts.measures import Measure
from poolbench_driver.suites.poolbench.d1 import concept_check_rows, right_passages


def cell(strategy, value, concept="causation", layer=3, status="ok", reason=None, metric="d1.auroc"):
    value = value if status == "ok" else None
    names = ("strategy", "value", "concept", "layer", "status", "reason", "metric")
    return dict(zip(names, (strategy, value, concept, layer, status, reason, metric), strict=True))


def by_metric(rows):
    return {row["metric"]: row for row in rows}


def test_a_concept_where_most_strategies_reach_99_is_saturated():
    rows = [cell("A", 0.995), cell("B", 0.99), cell("C", 0.98), cell("D", None, status="no_coverage")]
    found = by_metric(concept_check_rows(rows))
    assert found["d1.saturation"]["value"] == pytest.approx(2 / 3)
    assert found["d1.saturation"]["reason"].startswith("saturated: 2 of 3")
    assert (found["d1.saturation"]["concept"], found["d1.saturation"]["layer"]) == ("causation", 3)
    half = by_metric(concept_check_rows([cell("A", 1.0), cell("B", 0.5)]))
    assert (half["d1.saturation"]["value"], half["d1.saturation"]["reason"]) == (0.5, None)


def test_alarms_and_collapses_are_counted_by_concept_and_layer():
    rows = [
        cell("A", 0.4, reason="alarm: below .5 by more than 2 standard errors (0.02)"),
        cell("B", 0.6),
        cell("P2", None, status="collapsed"),
        cell("S2", None, status="not_implemented"),
        cell("A", 0.9, layer=4),
    ]
    found = concept_check_rows(rows)
    assert len(found) == 6
    first = by_metric(row for row in found if row["layer"] == 3)
    assert (first["d1.alarms"]["value"], first["d1.alarms"]["n"]) == (0.5, 2)
    assert first["d1.alarms"]["reason"].endswith(": A")
    assert first["d1.collapses"]["value"] == pytest.approx(1 / 3)


def test_without_any_auroc_the_shares_are_null():
    found = by_metric(concept_check_rows([cell("A", None, status="collapsed")]))
    assert found["d1.saturation"]["status"] == "too_few"
    assert found["d1.collapses"]["value"] == 1


def test_a_value_that_is_not_finite_is_a_null_whatever_was_said_of_it():
    found = Measure.of("d1.auroc", float("nan"), (0.1, 0.2), reason="alarm", n=3)
    assert (found.value, found.status, found.reason, found.n) == (None, "non_finite", "d1.auroc came out as nan", 3)


def test_a_passage_without_a_score_has_no_answer():
    scores = [("A", 1, 0.3), ("A", 0, 0.3), ("A", 0, -2.0), ("A", 1, None), ("B", 1, None)]
    rows = [
        {"concept": "causation", "strategy": name, "layer": 3, "passage_id": f"p{n}", "label": label, "score": score}
        for n, (name, label, score) in enumerate(scores)
    ]
    (answers,) = right_passages(pa.Table.from_pylist(rows))["causation"].values()
    assert answers == {"p0": True, "p1": False, "p2": True}
