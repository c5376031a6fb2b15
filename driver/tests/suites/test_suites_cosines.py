"""Cosines between strategies' directions: hand computations, nulls, invariances; means, order and groups of a board."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.spatial.distance import cosine as cosine_distance

from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.measures.cosines import cosine_board, cosine_rows


def directions(**vectors: list[float] | None) -> pa.Table:
    """DIRECTIONS by id; None is one that could not be computed."""
    width = max((len(v) for v in vectors.values() if v), default=1)
    rows = [
        {"direction_id": name, "vector": vector, "raw_norm": 2.0}
        if vector
        else {"direction_id": name, "status": "not_converged", "reason": "the probe missed its tolerance"}
        for name, vector in vectors.items()
    ]
    return table_from_rows(rows, directions_schema(width))


def by_pair(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["strategy_a"], row["strategy_b"]): row for row in rows}


def test_cosines_by_hand() -> None:
    tables = {
        "B": directions(C1=[0.6, 0.8], C3=[1.0, 0.0]),
        "A": directions(C1=[1.0, 0.0], C3=[0.0, 1.0]),
        "C": directions(C1=[-0.8, 0.6], C3=[0.0, -1.0]),
    }
    first = {pair: row["cosine"] for pair, row in by_pair(cosine_rows(tables, "C1")).items()}
    assert first == {("A", "B"): pytest.approx(0.6), ("A", "C"): pytest.approx(-0.8), ("B", "C"): pytest.approx(0.0)}
    third = {pair: row["cosine"] for pair, row in by_pair(cosine_rows(tables, "C3")).items()}
    assert third == {("A", "B"): 0.0, ("A", "C"): -1.0, ("B", "C"): 0.0}


def test_stored_directions_are_compared_at_unit_norm() -> None:
    """float32 rounds norms, and no cosine may pass 1; the oracle is SciPy's."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, 4096))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tables = {
        "one": directions(C1=vectors[0].tolist()),
        "again": directions(C1=vectors[0].tolist()),
        "other": directions(C1=vectors[1].tolist()),
    }
    found = by_pair(cosine_rows(tables))
    assert found["again", "one"]["cosine"] == pytest.approx(1, abs=1e-15) and found["again", "one"]["cosine"] <= 1
    stored = vectors.astype(np.float32).astype(np.float64)
    assert found["one", "other"]["cosine"] == pytest.approx(1 - cosine_distance(*stored), abs=1e-14)


def test_neither_order_nor_a_further_strategy_changes_a_row() -> None:
    rng = np.random.default_rng(1)
    tables = {name: directions(C1=rng.normal(size=257).tolist()) for name in ("D", "A", "C", "B")}
    before = by_pair(cosine_rows({name: tables[name] for name in ("A", "C", "D")}))
    after = by_pair(cosine_rows(tables))
    assert list(after) == sorted(after)
    assert before == {pair: row for pair, row in after.items() if "B" not in pair}  # to the last bit


def test_a_side_without_direction_makes_a_null_that_names_it() -> None:
    tables = {
        "A": directions(C1=[1.0, 0.0], C3=None),
        "B": CellError("collapsed", "all passages have the same vector"),
        "C": directions(C1=[0.0, 1.0], C3=[0.0, 1.0]),
        "D": directions(C1=[0.0, 0.0, 1.0]),
    }
    first = by_pair(cosine_rows(tables, "C1"))
    assert first["A", "C"] == {
        "direction": "C1",
        "strategy_a": "A",
        "strategy_b": "C",
        "cosine": 0.0,
        "status": "ok",
        "reason": None,
    }
    for pair in (("A", "B"), ("B", "C")):
        row = first[pair]
        assert (row["cosine"], row["status"]) == (None, "collapsed")
        assert row["reason"] == "B: all passages have the same vector"
    assert (first["A", "D"]["status"], first["A", "D"]["cosine"]) == ("failed", None)
    assert "widths 2 and 3" in first["A", "D"]["reason"]
    third = by_pair(cosine_rows(tables, "C3"))
    assert (third["A", "C"]["status"], third["A", "C"]["reason"]) == (
        "not_converged",
        "A: the probe missed its tolerance",
    )
    assert (third["C", "D"]["status"], third["C", "D"]["reason"]) == ("failed", "D: no direction C3 among C1")
    assert {row["status"] for row in [*first.values(), *third.values()]} <= set(Status)


def test_one_strategy_has_no_pair() -> None:
    assert cosine_rows({"A": directions(C1=[1.0])}) == []
    assert cosine_board([]).strategies == []


def row(a: str, b: str, concept: str, cosine: float | None, status: str = "ok") -> dict[str, Any]:
    return {"strategy_a": a, "strategy_b": b, "concept": concept, "cosine": cosine, "status": status}


def test_a_board_averages_over_the_concepts_that_both_have() -> None:
    board = cosine_board(
        [
            row("A", "B", "x", 0.5),
            row("A", "B", "y", 0.9),
            row("A", "C", "x", 0.2),
            row("A", "C", "y", None, "no_coverage"),
            row("B", "C", "x", None, "failed"),
            row("B", "C", "y", None, "no_coverage"),
            row("A", "P", "x", None, "collapsed"),
            row("B", "P", "x", None, "collapsed"),
            row("C", "P", "x", None, "collapsed"),
            row("P", "Q", "x", None, "collapsed"),
            row("A", "Q", "x", None, "one_class"),
        ]
    )
    of = {name: k for k, name in enumerate(board.strategies)}
    assert set(of) == {"A", "B", "C"}
    assert board.mean_SS[of["A"], of["B"]] == board.mean_SS[of["B"], of["A"]] == pytest.approx(0.7)
    assert board.mean_SS[of["A"], of["C"]] == pytest.approx(0.2)
    assert np.isnan(board.mean_SS[of["B"], of["C"]])
    assert board.lowest["A", "B"] == board.lowest["B", "A"] == (0.5, "x")
    assert board.nearest("C") == ("A", pytest.approx(0.2))
    assert board.nearest("B") == ("A", pytest.approx(0.7))
    assert board.without == {"P": "collapsed", "Q": "one_class"}


def test_similar_strategies_stand_together_and_near_copies_make_a_group() -> None:
    """Two planes with two directions each, apart by 5 degrees, in an order that mixes them."""
    angles = {"A": (0, 0), "B": (1, 0), "C": (0, 5), "D": (1, 5), "E": (0, 40)}
    vectors = {}
    for name, (plane, degrees) in angles.items():
        vectors[name] = np.zeros(4)
        vectors[name][2 * plane : 2 * plane + 2] = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    tables = {name: directions(C1=vector.tolist()) for name, vector in vectors.items()}
    board = cosine_board([{**line, "concept": "x"} for line in cosine_rows(tables)])
    places = {name: k for k, name in enumerate(board.strategies)}
    assert abs(places["A"] - places["C"]) == abs(places["B"] - places["D"]) == 1
    assert max(places[name] for name in "ACE") - min(places[name] for name in "ACE") == 2
    assert abs(places["E"] - places["C"]) == 1  # nearer to 5 than to 0 degrees
    assert sorted(map(sorted, board.groups())) == [["A", "C"], ["B", "D"]]  # cos 5 degrees = .9962
    assert board.groups(at_least=0.999) == []
    assert sorted(map(sorted, board.groups(at_least=0.7))) == [["A", "C", "E"], ["B", "D"]]  # cos 40 degrees = .766
