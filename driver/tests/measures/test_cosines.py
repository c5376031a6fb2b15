"""Cosines between directions: pair by pair by hand, in the tables of a run and on its page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.page_reader import cells_of, part_of, rendered, tables_of
from driver.tests.run_folders import rows_of, written
from scipy.spatial.distance import cosine as cosine_distance

from poolbench.config import ModelRef
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.errors import CellError
from poolbench.pooling.registry import STRATEGIES
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.page import Details, Prose
from poolbench_driver.measures.cosines import cosine_board, cosine_rows
from poolbench_driver.models import ModelInfo
from poolbench_driver.records.folder import create_run
from poolbench_driver.report.making import page_of
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.report.cosines import cosine_blocks


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


def test_a_side_without_direction_makes_a_null_that_names_it() -> None:
    tables = {
        "A": directions(C1=[1.0, 0.0], C3=None),
        "B": CellError("collapsed", "all passages have the same vector"),
        "C": directions(C1=[0.0, 1.0], C3=[0.0, 1.0]),
        "D": directions(C1=[0.0, 0.0, 1.0]),
    }
    first = by_pair(cosine_rows(tables, "C1"))
    expected = {"direction": "C1", "strategy_a": "A", "strategy_b": "C", "cosine": 0.0, "status": "ok", "reason": None}
    assert first["A", "C"] == expected
    for pair in (("A", "B"), ("B", "C")):
        row = first[pair]
        assert (row["cosine"], row["status"]) == (None, "collapsed")
        assert row["reason"] == "B: all passages have the same vector"
    assert (first["A", "D"]["status"], first["A", "D"]["cosine"]) == ("failed", None)
    assert "widths 2 and 3" in first["A", "D"]["reason"]
    third = by_pair(cosine_rows(tables, "C3"))
    missed = ("not_converged", "A: the probe missed its tolerance")
    assert (third["A", "C"]["status"], third["A", "C"]["reason"]) == missed
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


#: C1 of each strategy in the plane: W4 is A1 in disguise, L5 is at 60 degrees, P1 points away, P2 has collapsed.
ANGLES: dict[str, float] = {"A1_mean": 0, "W4_hierarchical": 1, "L5_keyword": 60, "P1_last_token": 120}

COLLAPSED = "P2_first_token"
SECRET = "SECRET-PASSAGE"


def plan_of(strategies: Sequence[str], **settings: Any) -> Plan:
    chosen = {"preset": "demo", "concepts": ["contrast", "toxicity"], "metrics": ["d1"], "layers": [2, 3], **settings}
    config = load_run_config(None, chosen)
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=2)
    specs = [STRATEGIES.get(name) for name in strategies]
    return make_plan(Scope(config, model, tuple(specs)))


def write(plan: Plan, artifacts: Artifacts) -> None:
    """Write what the prober would."""
    for cells in plan.probes.concepts.values():
        for (strategy, _), key in cells.measures.items():
            value = 0.9 if strategy == "A1_mean" else 0.8
            null = Measure.null("d1.auroc", "collapsed", "all passages have the same vector")
            measure = null if strategy == COLLAPSED else Measure.of("d1.auroc", value)
            artifacts.write_table(key, t.table_from_rows([measure.to_row()], t.MEASURES))
        for (strategy, _), key in cells.directions.items():
            artifacts.write_table(key, _directions(strategy))


def _directions(strategy: str) -> pa.Table:
    if strategy == COLLAPSED:
        why = {"status": "collapsed", "reason": f"every passage begins with '{SECRET}'"}
        return t.table_from_rows([{"direction_id": name, **why} for name in ("C1", "C3")], t.directions_schema(2))
    angle = np.radians(ANGLES[strategy])
    c1 = {"direction_id": "C1", "vector": [np.cos(angle), np.sin(angle)], "raw_norm": 1.0}
    c3 = {"direction_id": "C3", "vector": [np.cos(angle / 2), np.sin(angle / 2)], "raw_norm": 1.0}
    return t.table_from_rows([c1, c3], t.directions_schema(2))


@pytest.fixture
def store(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def test_of_sensitive_concepts_the_cosines_are_public_and_nothing_else(store: Artifacts, tmp_path: Path) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    assert all(key.startswith("restricted.") for key in plan.probes.concepts["toxicity"].directions.values())
    tables = assemble(plan, store, {}, "run-1")
    own = rows_of(tables, "cosines", concept="toxicity")
    assert {row["cosine"] for row in own if row["cosine"] is not None}
    assert not any(pa.types.is_nested(kind) for kind in tables["cosines"].schema.types)
    assert all(task.kind == "prober.probe" for task in plan.tasks.values() if "directions" in str(task.outputs))


def test_the_direction_that_steers_is_compared_too(store: Artifacts) -> None:
    plan = plan_of(["A1_mean", "P1_last_token"], steering={"direction": "LDA"})
    write(plan, store)
    found = rows_of(assemble(plan, store, {}, "run-1"), "cosines", direction="LDA")
    assert {row["status"] for row in found} == {"failed"}  # these artifacts hold none
    assert found[0]["reason"] == "A1_mean: no direction LDA among C1, C3"


def test_the_report_names_strategies_in_disguise(store: Artifacts, tmp_path: Path) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    tables = assemble(plan, store, {}, "run-1")
    page = page_of(written(create_run(tmp_path / "runs", plan.scope.config), tables))
    html, markdown = rendered(page)
    part = part_of(page, "cosines")
    assert Prose("Nearly equal, every pair at 0.99 or more (C1, layer 2): A1_mean, W4_hierarchical.") in part.blocks
    shown, nearest, *others = tables_of(*part.blocks)
    assert "P2_first_token (collapsed)" in shown.note and SECRET not in html
    assert len(others) == 3  # two layers by two constructions
    assert isinstance(part.blocks[-1], Details) and tables_of(part.blocks[-1]) == others
    shades = {cell.text: cell.shade for line in shown.lines for cell in line.cells}
    assert shades["1.00"] == 8 and shades["-.50"] < 0
    assert cells_of(nearest)["A1_mean"]["C1"] == "0.9998" and "| A1_mean | W4_hierarchical | 0.9998 |" in markdown


def test_the_page_begins_with_the_layer_that_is_steered() -> None:
    line = {"concept": "contrast", "strategy_a": "A1_mean", "strategy_b": "P1_last_token", "status": "ok"}
    rows = [{**line, "direction": d, "layer": n, "cosine": n / 10} for d in ("C3", "C1") for n in (2, 3)]
    blocks = cosine_blocks(rows, steered=3)
    shown, nearest, *others = tables_of(*blocks)
    layers = [(table.title, table.note.partition(";")[0]) for table in (shown, *others)]
    assert layers == [("C1", "layer 3"), ("C1", "layer 2"), ("C3", "layer 2"), ("C3", "layer 3")]
    assert [(cell.text, cell.shade) for cell in shown.lines[1].cells] == [("2 P1_last_token", 0), (".30", 1)]
    assert not any(isinstance(block, Prose) for block in blocks)
    assert nearest.lines[0].cells[-1].value == pytest.approx(0.3)
    alone = cosine_blocks([{**rows[0], "direction": "C1", "cosine": None, "status": "collapsed"}], None)
    assert alone == [Prose("Nothing to compare: fewer than two strategies have a direction.")]
