"""Checks of a concept, confounds, and cosines between directions, by hand and pair by pair."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.spatial.distance import cosine as cosine_distance

from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench_driver.pages.boards.cell_table import layer_stability
from poolbench_driver.suites.poolbench.audit import excess_over_confound
from poolbench_driver.suites.poolbench.d1 import concept_check_rows
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


def test_a_value_that_is_not_finite_is_a_null_whatever_was_said_of_it():
    found = Measure.of("d1.auroc", float("nan"), (0.1, 0.2), reason="alarm", n=3)
    assert (found.value, found.status, found.reason, found.n) == (None, "non_finite", "d1.auroc came out as nan", 3)


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


def grid(values_LNK):
    return [
        cell(f"S{k}", float(value), f"c{n}", layer)
        for layer, values_NK in enumerate(values_LNK)
        for n, row in enumerate(values_NK)
        for k, value in enumerate(row)
    ]


def test_layer_stability_is_spearman_of_the_mean_ranks():
    values = np.random.default_rng(0).normal(size=(3, 9, 6)) + 0.7 * np.arange(6)
    found = layer_stability(grid(values), "d1.auroc")
    assert [m.params["layers"] for m in found] == [[0, 1], [0, 2], [1, 2]]
    ranks = [np.mean([stats.rankdata(-row) for row in layer], axis=0) for layer in values]
    for measure in found:
        first, second = measure.params["layers"]
        assert measure.value == pytest.approx(stats.spearmanr(ranks[first], ranks[second]).statistic)
        assert measure.ci_low <= measure.value <= measure.ci_high
        assert (measure.n, measure.num_groups) == (6, 9)


def test_equal_and_reversed_orders_are_1_and_minus_1():
    values = np.random.default_rng(1).permuted(np.tile(np.arange(5.0), (4, 1)), axis=1)
    values += np.arange(5) * 10
    assert layer_stability(grid([values, values]), "d1.auroc")[0].value == pytest.approx(1)
    assert layer_stability(grid([values, -values]), "d1.auroc")[0].value == pytest.approx(-1)


def test_collapsed_strategies_rank_worst_and_missing_ones_are_left_out():
    rows = grid(np.tile(np.arange(4.0), (2, 3, 1)))
    for row in rows:
        if row["strategy"] == "S3":
            row.update(value=None, status="collapsed")
        if row["strategy"] == "S2" and row["layer"] == 1:
            row.update(value=None, status="failed")
    (found,) = layer_stability(rows, "d1.auroc")
    assert (found.value, found.n) == (pytest.approx(1), 3)


def test_two_strategies_are_too_few_and_one_layer_has_no_pair():
    (found,) = layer_stability(grid(np.zeros((2, 3, 2))), "d1.auroc")
    assert found.status == "too_few"
    assert layer_stability(grid(np.zeros((1, 3, 5))), "d1.auroc") == []
    (flat,) = layer_stability(grid(np.zeros((2, 3, 4))), "d1.auroc")
    assert flat.status == "collapsed"
