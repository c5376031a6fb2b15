"""D1 beyond the best confound that the audit of the corpus finds: in the rows of a run and on its page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driver.tests.run_folders import written

from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.statistics.auroc import auroc
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import Training
from poolbench_corpora.planted import build_planted
from poolbench_driver.assemble import assemble
from poolbench_driver.pages.text import markdown_of
from poolbench_driver.records import Run
from poolbench_driver.report.making import write_report
from poolbench_driver.report.reading import read_page

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


def test_scores_of_other_passages_or_folds_are_not_compared(made: Any) -> None:
    run, passages = made
    absent = excess_of(assemble(run.plan, run.artifacts, {}, "run-1"))["L5_keyword"]
    run.artifacts.delete(run.plan.probes.concepts[CONCEPT].scores["A1_mean", 2])
    write_scores(run, passages, perfect, shift=1)
    shifted = excess_of(assemble(run.plan, run.artifacts, {}, "run-1"))["A1_mean"]
    for row in (absent, shifted):
        assert (row["value"], row["status"]) == (None, "failed")
        assert row["reason"] == "the scores of D1 are not of the passages and folds of the audit"


def folder_of(tables: dict[str, pa.Table], path: Path) -> Run:
    folder = Run(path)
    path.mkdir()
    folder.file("config.resolved.yaml").write_text("seed: 0\n")
    return written(folder, tables)


def test_the_verdict_stands_beside_the_board(made: Any, tmp_path: Path) -> None:
    run, _ = made
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    assert set(tables["audit"]["verdict"].to_pylist()) == {"confounded"}
    folder = folder_of(tables, tmp_path / "run-1")
    page, markdown = write_report(folder).read_text("utf-8"), markdown_of(read_page(folder))
    for text in (page, markdown):
        assert "Verdict on the passages" in text and METRIC in text
        assert "punctuation alone separates the classes" in text
    assert "| contrast | confounded | 0." in markdown
    assert page.index('id="audit"') < page.index('id="maps"')


def others(tables: dict[str, pa.Table]) -> list[Row]:
    """Return the rows of results that have nothing to do with the audit."""
    return [{**row, "created_at": None} for row in tables["results"].to_pylist() if row["metric"] != METRIC]


def test_without_passages_the_audit_says_why_and_the_other_rows_are_as_they_were(made: Any) -> None:
    run, _ = made
    before = others(assemble(run.plan, run.artifacts, {}, "run-1"))
    for key in run.plan.vectors.concepts[CONCEPT].passages.values():
        run.artifacts.delete(key)
    tables = assemble(run.plan, run.artifacts, {}, "run-1")
    (row,) = tables["audit"].to_pylist()
    assert (row["verdict"], row["status"]) == (None, "failed")
    assert "is missing" in row["reason"]
    assert excess_of(tables)["A1_mean"]["reason"] == row["reason"]
    assert others(tables) == before and any(row["metric"] == "rank.mean" for row in before)
