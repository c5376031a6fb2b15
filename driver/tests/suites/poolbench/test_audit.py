"""D1 beyond the best confound: by hand, in the rows of a run and on its page."""

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
from poolbench.contracts.measures import Measure
from poolbench.statistics.auroc import auroc
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import Training
from poolbench_corpora.planted import build_planted
from poolbench_driver.assemble import assemble
from poolbench_driver.records import RunFolder
from poolbench_driver.report import leaderboard_markdown, write_report
from poolbench_driver.suites.poolbench.audit import excess_over_confound

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
    folder.file("config.resolved.yaml").write_text("seed: 0\n")
    return written(folder, tables)


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
