"""D1 beyond the best confound, and cosines between directions, in a run's rows and its report."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driver.tests.page_reader import cells_of, part_of, rendered, tables_of

from poolbench.config import ModelRef
from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.contracts.results import COSINE_SCHEMA
from poolbench.pooling.registry import STRATEGIES
from poolbench.statistics.auroc import auroc
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import Training
from poolbench_corpora.planted import build_planted
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.page import Details, Prose
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import RunFolder
from poolbench_driver.report import leaderboard_markdown, page_of, write_report
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan
from poolbench_driver.suites.poolbench.report.cosines import cosine_blocks, short

METRIC = "d1.excess_over_confound"
CONCEPT = "contrast"


@pytest.fixture
def made(steered: Callable[..., Any]) -> Any:
    """A run of D1 with real passages; A1_mean has scores that are better than the confounds, L5_keyword has none."""
    made = steered(metrics=["d1"])
    plan, artifacts = made.plan, made.artifacts
    passages = exclaimed(build_planted(CONCEPT, seed=0, num_train=200, num_test=40, num_scorer=0))
    for split, key in plan.vectors.concepts[CONCEPT].passages.items():
        if split != "scorer":
            artifacts.write_table(key, passages.filter(pc.equal(passages["split"], split)))
    probes = plan.probes.concepts[CONCEPT]
    made.probes(probes)
    artifacts.delete(probes.scores["A1_mean", 2])
    write_scores(made, passages, perfect)
    return made, passages


def exclaimed(passages: pa.Table) -> pa.Table:
    """The same with a confound: most positives have exclamation marks for full stops."""
    rows = passages.to_pylist()
    for row in rows[::2][::2] + rows[::2][1::4]:
        row["text"] = row["text"].replace(".", "!")
    return pa.Table.from_pylist(rows, schema=passages.schema)


def perfect(training: Training) -> np.ndarray:
    return training.labels.astype(float)


def write_scores(made: Any, passages: pa.Table, score: Callable[[Training], np.ndarray], shift: int = 0) -> None:
    """Write PROBE_SCORES of A1_mean, with the folds of the run's seed."""
    training = Training.of(passages, seed=0)
    rows = [
        {"passage_id": name, "split": "train", "fold": int(fold + shift) % 5, "label": int(label), "group": str(group)}
        | {"score": float(value)}
        for name, fold, label, group, value in zip(
            training.ids, training.folds, training.labels, training.groups, score(training), strict=True
        )
    ]
    key = made.plan.probes.concepts[CONCEPT].scores["A1_mean", 2]
    made.artifacts.write_table(key, t.table_from_rows(rows, t.PROBE_SCORES))


def excess_of(tables: dict[str, pa.Table]) -> dict[str, Row]:
    return {row["strategy"]: row for row in tables["results"].to_pylist() if row["metric"] == METRIC}


def test_the_excess_is_d1_minus_the_best_confound(made: Any) -> None:
    run, passages = made
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    row = excess_of(tables)["A1_mean"]
    found = audit(run.plan.vectors.concepts[CONCEPT].concept, passages, num_bootstrap=20)
    best = found.best
    assert best is not None and best.auroc == max(f.auroc or 0 for f in found.figures if f.kind == "confound")
    assert row["value"] == pytest.approx(1.0 - auroc(found.training.labels, best.scores, found.training.folds))
    assert row["ci_low"] <= row["value"] <= row["ci_high"]
    assert (row["n"], row["num_groups"], row["layer"], row["split"], row["seed"]) == (200, 100, 2, "train", 0)
    details = {row["cell_id"]: json.loads(row["details"]) for row in tables["details"].to_pylist()}
    assert details[row["cell_id"]] == {"confound": best.name, "confound_auroc": pytest.approx(best.auroc)}


def test_what_cannot_be_compared_is_null_with_its_reason(made: Any) -> None:
    run, passages = made
    other = excess_of(assemble(run.plan, run.artifacts, {}, "run-1"))["L5_keyword"]
    assert (other["value"], other["status"]) == (None, "failed")
    assert other["reason"] == "the scores of D1 are not of the passages and folds of the audit"
    run.artifacts.delete(run.plan.probes.concepts[CONCEPT].scores["A1_mean", 2])
    write_scores(run, passages, perfect, shift=1)
    assert excess_of(assemble(run.plan, run.artifacts, {}, "run-1"))["A1_mean"]["status"] == "failed"
    run.artifacts.delete(run.plan.probes.concepts[CONCEPT].scores["A1_mean", 2])
    write_scores(run, passages, lambda training: np.full(len(training.ids), np.nan))
    lost = excess_of(assemble(run.plan, run.artifacts, {}, "run-1"))["A1_mean"]
    assert (lost["value"], lost["status"]) == (None, "not_converged")


def test_the_other_rows_do_not_depend_on_the_audit(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = made

    def others() -> list[Row]:
        rows = assemble(run.plan, run.artifacts, {}, "run-1")["results"].to_pylist()
        return [{**row, "created_at": None} for row in rows if row["metric"] != METRIC]

    before = others()
    for key in run.plan.vectors.concepts[CONCEPT].passages.values():
        run.artifacts.delete(key)
    assert others() == before
    assert any(row["metric"] == "rank.mean" for row in before)


def folder_of(tables: dict[str, pa.Table], path: Path) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir()
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures([])
    folder.file("config.resolved.yaml").write_text("seed: 0\n")
    return folder


def test_the_verdict_stands_beside_the_board(made: Any, tmp_path: Path) -> None:
    run, _ = made
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    assert set(tables["audit"]["verdict"].to_pylist()) == {"confounded"}
    folder = folder_of(tables, tmp_path / "run-1")
    page, markdown = write_report(folder).read_text("utf-8"), leaderboard_markdown(folder)
    for text in (page, markdown):
        assert "Verdict on the passages" in text and METRIC in text
        assert "punctuation alone separates the classes" in text
    assert "| contrast | confounded | 0." in markdown
    assert page.index('id="audit"') < page.index('id="maps"')


def test_a_run_of_an_earlier_version_is_not_audited(made: Any, tmp_path: Path) -> None:
    run, _ = made
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    del tables["audit"]
    assert "| contrast | not audited |" in leaderboard_markdown(folder_of(tables, tmp_path / "run-1"))


def test_without_passages_the_audit_says_why(made: Any, tmp_path: Path) -> None:
    run, _ = made
    for key in run.plan.vectors.concepts[CONCEPT].passages.values():
        run.artifacts.delete(key)
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    (row,) = tables["audit"].to_pylist()
    assert (row["verdict"], row["status"]) == (None, "failed")
    assert "is missing" in row["reason"]
    assert excess_of(tables)["A1_mean"]["reason"] == row["reason"]


#: C1 of each strategy in the plane: W4 is A1 in disguise, L5 is at 60 degrees, P1 points away, P2 has collapsed.
ANGLES: dict[str, float | None] = {"A1_mean": 0, "W4_hierarchical": 1, "L5_keyword": 60, "P1_last_token": 120}
COLLAPSED = "P2_first_token"
SECRET = "SECRET-PASSAGE"


def plan_of(strategies: Sequence[str], **settings: Any) -> Plan:
    config = load_run_config(
        None,
        {"preset": "demo", "concepts": ["contrast", "toxicity"], "metrics": ["d1"], "layers": [2, 3], **settings},
    )
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=2)
    specs = [STRATEGIES.get(name) for name in strategies]
    return make_plan(Scope(config, model, tuple(specs)))


def write(plan: Plan, artifacts: Artifacts) -> int:
    """Writes what the prober would and the store lacks; returns the number of directions written."""
    written = 0
    for cells in plan.probes.concepts.values():
        for (strategy, _), key in cells.measures.items():
            value = 0.9 if strategy == "A1_mean" else 0.8
            null = Measure.null("d1.auroc", "collapsed", "all passages have the same vector")
            measure = null if strategy == COLLAPSED else Measure.of("d1.auroc", value)
            artifacts.write_table(key, t.table_from_rows([measure.to_row()], t.MEASURES))
        for (strategy, _), key in cells.directions.items():
            if not artifacts.exists(key):
                artifacts.write_table(key, _directions(strategy))
                written += 1
    return written


def _directions(strategy: str) -> pa.Table:
    if strategy == COLLAPSED:
        why = {"status": "collapsed", "reason": f"every passage begins with '{SECRET}'"}
        return t.table_from_rows([{"direction_id": name, **why} for name in ("C1", "C3")], t.directions_schema(2))
    angle = np.radians(ANGLES[strategy] or 0.0)
    c1 = {"direction_id": "C1", "vector": [np.cos(angle), np.sin(angle)], "raw_norm": 1.0}
    c3 = {"direction_id": "C3", "vector": [np.cos(angle / 2), np.sin(angle / 2)], "raw_norm": 1.0}
    return t.table_from_rows([c1, c3], t.directions_schema(2))


def rows_of(tables: dict[str, pa.Table], **wanted: Any) -> list[dict[str, Any]]:
    return [r for r in tables["cosines"].to_pylist() if all(r[name] == value for name, value in wanted.items())]


@pytest.fixture
def store(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def test_every_pair_of_every_concept_layer_and_construction_once(store: Artifacts) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    tables = assemble(plan, store, {}, "run-1")
    assert tables["cosines"].schema == COSINE_SCHEMA
    assert len(rows_of(tables)) == 2 * 2 * 2 * 10  # concepts, layers, constructions, pairs of five strategies
    names = ("model", "layer", "concept", "direction", "strategy_a", "strategy_b")
    assert len({tuple(row[name] for name in names) for row in rows_of(tables)}) == 80
    (same,) = rows_of(
        tables, concept="contrast", layer=3, direction="C1", strategy_a="A1_mean", strategy_b="W4_hierarchical"
    )
    assert (same["model"], same["status"], same["cosine"]) == ("demo", "ok", pytest.approx(np.cos(np.radians(1))))
    pair = {"strategy_a": "L5_keyword", "strategy_b": "P1_last_token"}
    assert [row["cosine"] for row in rows_of(tables, direction="C1", **pair)] == [pytest.approx(0.5)] * 4
    assert [row["cosine"] for row in rows_of(tables, direction="C3", **pair)] == [pytest.approx(np.sqrt(0.75))] * 4


def test_nulls_have_the_status_of_the_side_that_has_no_direction(store: Artifacts) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    lost = plan.probes.concepts["contrast"].directions["L5_keyword", 2]
    store.delete(lost)
    task = plan.producers[lost]
    tables = assemble(plan, store, {task.task_id: Failure(task.task_id, task.kind, "too_few", "no more")}, "run-1")
    assert all((row["cosine"] is None) == (row["status"] != "ok") for row in rows_of(tables))
    assert {row["status"] for row in rows_of(tables, strategy_b=COLLAPSED, strategy_a="A1_mean")} == {"collapsed"}
    contrast = rows_of(tables, concept="contrast", strategy_a="A1_mean", strategy_b="L5_keyword", direction="C1")
    assert {(row["layer"], row["status"]) for row in contrast} == {(2, "too_few"), (3, "ok")}
    assert next(row["reason"] for row in contrast if row["layer"] == 2) == "L5_keyword: no more"


def test_of_sensitive_concepts_the_cosines_are_public_and_nothing_else(store: Artifacts, tmp_path: Path) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    assert all(key.startswith("restricted.") for key in plan.probes.concepts["toxicity"].directions.values())
    tables = assemble(plan, store, {}, "run-1")
    own = rows_of(tables, concept="toxicity")
    assert {row["cosine"] for row in own if row["cosine"] is not None}
    assert not any(pa.types.is_nested(kind) for kind in tables["cosines"].schema.types)
    assert all(task.kind == "prober.probe" for task in plan.tasks.values() if "directions" in str(task.outputs))


def test_a_strategy_added_later_changes_no_key_and_no_row(store: Artifacts) -> None:
    first = plan_of(["A1_mean", "P1_last_token"])
    assert write(first, store) == 2 * 2 * 2
    before = rows_of(assemble(first, store, {}, "run-1"))
    later = plan_of(["L5_keyword", "P1_last_token", "A1_mean"])
    assert write(later, store) == 2 * 2  # the new strategy's alone
    after = rows_of(assemble(later, store, {}, "run-2"))
    assert [row for row in after if "L5_keyword" not in (row["strategy_a"], row["strategy_b"])] == before
    assert len(after) == 3 * len(before)


def test_the_direction_that_steers_is_compared_too(store: Artifacts) -> None:
    plan = plan_of(["A1_mean", "P1_last_token"], steering={"direction": "LDA"})
    write(plan, store)
    found = rows_of(assemble(plan, store, {}, "run-1"), direction="LDA")
    assert {row["status"] for row in found} == {"failed"}  # these artifacts hold none
    assert found[0]["reason"] == "A1_mean: no direction LDA among C1, C3"


def test_the_report_names_strategies_in_disguise(store: Artifacts, tmp_path: Path) -> None:
    plan = plan_of([*ANGLES, COLLAPSED])
    write(plan, store)
    tables = assemble(plan, store, {}, "run-1")
    folder = RunFolder.create(tmp_path / "runs", plan.scope.config)
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures([])
    page = page_of(folder)
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


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00"), (0.996, "1.00"), (0.124, ".12"), (-0.5, "-.50"), (-1e-9, ".00")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text
