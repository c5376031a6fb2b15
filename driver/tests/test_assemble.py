"""Rows and report from hand-made artifacts: complete, failed, not implemented; nothing restricted gets out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.config import ModelRef, load_run_config
from poolbench.contracts import tables as t
from poolbench.contracts.results import RESULT_SCHEMA, results_digest
from poolbench.errors import STATUSES
from poolbench.pooling.registry import get_strategy
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.suites import Measure
from poolbench_driver.assemble import assemble
from poolbench_driver.models import ModelInfo
from poolbench_driver.plan import NULLS, UNSTEERED, ConceptPlan, Plan, make_plan, scorers_of
from poolbench_driver.report import write_report
from poolbench_driver.run import Failure
from poolbench_driver.rundir import RunFolder

WIDTH, SECRET = 8, "SECRET-PASSAGE"
STRATEGIES = ("A1_mean", "L5_keyword", "S2_gradient")


def plan_of(concepts: Sequence[str], absent: dict[str, str] | None = None) -> Plan:
    strengths = {"strengths": [0.06, 0.125, 0.25, 0.5], "null_strengths": [0.06, 0.125, 0.25]}
    budget = {"num_openings": 6, "num_bootstrap": 20, "reference_strength": 0.125, **strengths}
    settings = {"preset": "demo", "concepts": list(concepts), "strategies": list(STRATEGIES), "layers": [2]}
    config = load_run_config(None, {**settings, "budget": budget})
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=WIDTH)
    *written, unwritten = map(get_strategy, STRATEGIES)
    return make_plan(config, model, [*written, replace(unwritten, function=None)], absent=absent)


class Maker:
    """Writes the artifacts of a plan: scores rise with strength for directions, and stay for nulls."""

    def __init__(self, plan: Plan, artifacts: Artifacts) -> None:
        self.plan, self.artifacts, self.rng = plan, artifacts, np.random.default_rng(0)

    def all(self) -> None:
        for cells in self.plan.concepts.values():
            self._probes(cells)
            self._texts(cells)
        for cells in self.plan.neighbours.values():
            self._vectors(cells)
        texts, fluency, scores = self.plan.unsteered
        self._generation((texts, fluency, scores), [UNSTEERED], [0.0], list(self.plan.scorers), slope=0)
        for scorer in self.plan.scorers.values():
            self._measures(scorer.training, Measure.of("scorer.auroc", 0.95))
            means = [Measure.of("scorer.positive_mean", 0.9), Measure.of("scorer.negative_mean", 0.1)]
            self._measures(scorer.gate, Measure.of("scorer.gate", 1.0), *means)

    def _write(self, key: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        self.artifacts.write_table(key, t.table_from_rows(rows, schema), producer={"wall_s": 2.0})

    def _measures(self, key: str, *measures: Measure) -> None:
        self._write(key, [measure.to_row() for measure in measures], t.MEASURES)

    def _unit(self) -> list[float]:
        vector = self.rng.normal(size=WIDTH)
        return list(vector / np.linalg.norm(vector))

    def _probes(self, cells: ConceptPlan) -> None:
        for (strategy, layer), key in cells.measures.items():
            d1 = Measure.of("d1.auroc", 0.9 if strategy == "A1_mean" else 0.8, (0.7, 0.95), coverage=1.0, n=40)
            self._measures(key, d1, Measure.of("d1.auroc_permuted", 0.5))
            row = {"direction_id": "C1", "vector": self._unit(), "raw_norm": 1.0, "status": "ok"}
            self._write(cells.directions[strategy, layer], [row], t.directions_schema(WIDTH))
            score = {"passage_id": "p1", "split": "train", "fold": 0, "label": 1, "group": "g", "score": 0.5}
            table = t.table_from_rows([score], t.PROBE_SCORES).append_column("text", pa.array([SECRET]))
            self.artifacts.write_table(cells.probe_scores[strategy, layer], table)

    def _vectors(self, cells: ConceptPlan) -> None:
        ids = [f"p{n}" for n in range(8)]
        passages = [{"passage_id": name, "label": n % 2, "text": SECRET} for n, name in enumerate(ids)]
        self._write(cells.passages["train"], passages, t.PASSAGES)
        for key in cells.vectors.values():
            rows = [{"passage_id": name, "vector": self._unit(), "status": "ok"} for name in ids]
            self._write(key, rows, t.vectors_schema(WIDTH))

    def _texts(self, cells: ConceptPlan) -> None:
        budget = self.plan.config.budget
        scorers = scorers_of(self.plan, cells.concept)
        for name, texts in cells.texts.items():
            keys = (texts, cells.fluency[name], cells.scores[name])
            null = name == NULLS
            directions = [f"null_{n:03d}" for n in range(budget.num_nulls)] if null else [f"{name}/C1"]
            strengths = budget.null_strengths if null else budget.strengths
            self._generation(keys, directions, strengths, scorers, slope=0.0 if null else 1.0)

    def _generation(
        self,
        keys: tuple[str, str, str],
        directions: Sequence[str],
        strengths: Sequence[float],
        scorers: Sequence[str],
        slope: float,
    ) -> None:
        texts, fluency, scores = [], [], []
        for direction in directions:
            for strength in strengths:
                for prompt in range(self.plan.config.budget.num_openings):
                    name = f"{direction}|{strength}|{prompt}"
                    texts.append(
                        {"text_id": name, "prompt_id": str(prompt), "direction_key": direction, "strength": strength,
                         "text": SECRET, "num_tokens": 20, "repeated_4grams": 0.0}
                    )  # fmt: skip
                    fluency.append({"text_id": name, "mean_nll": 2.0, "num_tokens": 20})
                    for n, scorer in enumerate(scorers):
                        score = 0.2 + 0.01 * prompt + (slope * strength if n == 0 else 0.0)
                        scores.append({"text_id": name, "scorer": scorer, "score": min(score, 1.0)})
        self._write(keys[0], texts, t.TEXTS)
        self._write(keys[1], fluency, t.FLUENCY)
        table = t.table_from_rows(scores, t.SCORES).append_column("text", pa.array([SECRET] * len(scores)))
        self.artifacts.write_table(keys[2], table)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Artifacts]:
    plan = plan_of(["contrast", "toxicity"])
    artifacts = Artifacts(FolderStore(tmp_path_factory.mktemp("store")))
    Maker(plan, artifacts).all()
    return plan, artifacts


@pytest.fixture(scope="module")
def complete(made: tuple[Plan, Artifacts]) -> dict[str, pa.Table]:
    return assemble(*made, {}, "run-1")


def rows_of(tables: dict[str, pa.Table], **wanted: Any) -> list[dict[str, Any]]:
    return [r for r in tables["results"].to_pylist() if all(r[name] == value for name, value in wanted.items())]


def test_every_metric_has_its_rows_and_each_cell_one(complete: dict[str, pa.Table]) -> None:
    assert complete["results"].schema == RESULT_SCHEMA
    ids = complete["results"]["cell_id"].to_pylist()
    assert len(ids) == len(set(ids))
    assert set(complete["results"]["status"].to_pylist()) <= set(STATUSES)
    (d1,) = rows_of(complete, metric="d1.auroc", concept="contrast", strategy="A1_mean")
    assert (d1["value"], d1["layer"], d1["wall_s"], d1["model_revision"]) == (0.9, 2, 2.0, "local-0")
    for metric in ("d2.scp", "d2.best_gain", "d3.ld", "d3.rep_lc", "rank.mean"):
        assert any(row["value"] is not None for row in rows_of(complete, metric=metric)), metric


def test_the_best_gain_is_what_was_planted(complete: dict[str, pa.Table]) -> None:
    for row in rows_of(complete, metric="d2.best_gain", strategy="A1_mean"):
        assert row["value"] == pytest.approx(0.5)  # slope 1 at the highest strength, .5
    for row in rows_of(complete, metric="d2.best_gain.null_p95", strategy="A1_mean"):
        assert row["value"] == pytest.approx(0.0)


def test_what_is_not_implemented_says_so_in_every_metric(complete: dict[str, pa.Table]) -> None:
    rows = [row for row in rows_of(complete, strategy="S2_gradient") if row["metric"] != "rank.mean"]
    assert {row["metric"].partition(".")[0] for row in rows} == {"d1", "d2", "d3"}
    assert {(row["status"], row["value"]) for row in rows} == {("not_implemented", None)}


def test_ranks_follow_d1(complete: dict[str, pa.Table]) -> None:
    ranks = {
        row["strategy"]: row["value"]
        for row in rows_of(complete, metric="rank.mean")
        if json.loads(row["params"]) == {"of": "d1.auroc", "board": "all"}
    }
    assert ranks == {"A1_mean": 1.0, "L5_keyword": 2.0}


def test_outcomes_are_kept_beside_the_rows(complete: dict[str, pa.Table]) -> None:
    details = complete["details"].to_pylist()
    assert details
    assert {row["cell_id"] for row in details} <= set(complete["results"]["cell_id"].to_pylist())


def test_curves_start_unsteered_and_rise(complete: dict[str, pa.Table]) -> None:
    curve = [r for r in complete["curves"].to_pylist() if (r["concept"], r["strategy"]) == ("contrast", "A1_mean")]
    assert [row["strength"] for row in curve] == [0.0, 0.06, 0.125, 0.25, 0.5]
    assert [row["gain"] for row in curve] == pytest.approx([0.0, 0.06, 0.125, 0.25, 0.5])


def test_the_same_artifacts_give_the_same_digest(made: tuple[Plan, Artifacts], complete: dict[str, pa.Table]) -> None:
    again = assemble(*made, {}, "another-run")
    assert results_digest(again["results"]) == results_digest(complete["results"])


def test_a_failed_task_is_a_row_with_its_reason(tmp_path: Path) -> None:
    plan = plan_of(["contrast"])
    artifacts = Artifacts(FolderStore(tmp_path))
    Maker(plan, artifacts).all()
    cells = plan.concepts["contrast"]
    lost = {cells.measures["A1_mean", 2]: "too_few", cells.texts["L5_keyword"]: "failed"}
    failures = {}
    for key, status in lost.items():
        artifacts.delete(key)
        task = plan.producers()[key]
        failures[task.task_id] = Failure(task.task_id, task.kind, status, f"because of {status}")
    tables = assemble(plan, artifacts, failures, "run-1")
    (d1,) = rows_of(tables, metric="d1.auroc", strategy="A1_mean")
    assert (d1["value"], d1["status"], d1["reason"]) == (None, "too_few", "because of too_few")
    for row in rows_of(tables, metric="d2.scp", strategy="L5_keyword"):
        assert (row["value"], row["status"], row["reason"]) == (None, "failed", "because of failed")
    (other,) = rows_of(tables, metric="d1.auroc", strategy="L5_keyword")
    assert other["value"] == 0.8
    (cosine,) = rows_of(tables, metric="d3.rep_ld", strategy="L5_keyword")
    assert cosine["status"] == "ok"  # directions do not need the texts


def test_a_neighbour_without_passages_costs_only_what_compares_with_it(tmp_path: Path) -> None:
    plan = plan_of(["contrast"], absent={"causation": "the corpus has no causation"})
    artifacts = Artifacts(FolderStore(tmp_path))
    Maker(plan, artifacts).all()
    tables = assemble(plan, artifacts, {}, "run-1")
    distant = rows_of(tables, strategy="A1_mean", neighbour="causation")
    assert {row["metric"] for row in distant} >= {"d3.robust_ld", "d3.rep_ld"}
    assert all((row["status"], row["reason"]) == ("no_scorer", "the corpus has no causation") for row in distant)
    (close,) = rows_of(tables, strategy="A1_mean", neighbour="negation_density", metric="d3.robust_lc")
    (gain,) = rows_of(tables, strategy="A1_mean", metric="d2.best_gain")
    assert close["value"] is not None and gain["value"] is not None


def test_boards_say_whether_strategies_differ(complete: dict[str, pa.Table]) -> None:
    (board,) = [row for row in complete["boards"].to_pylist() if (row["metric"], row["board"]) == ("d1.auroc", "all")]
    assert board["num_blocks"] == 2
    # Two strategies, two blocks: q.05 of the studentized range for two is 1.960, sqrt(2 * 3 / (6 * 2)) = .7071.
    assert board["critical_difference"] == pytest.approx(1.960 * 0.7071, abs=1e-3)


def test_nothing_restricted_leaves_the_store(
    made: tuple[Plan, Artifacts], complete: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Scores are public; passages, texts and vectors are not, whatever columns an artifact carries."""
    folder = _finished(made[0], complete, tmp_path, [])
    for name, table in complete.items():
        assert not {"text", "prompt", "vector", "token_ids"} & set(table.schema.names), name
        assert not any(pa.types.is_fixed_size_list(kind) for kind in table.schema.types), name
        assert SECRET not in json.dumps(table.to_pylist())
    assert SECRET not in (folder.path / "report" / "index.html").read_text()
    assert any(row["concept"] == "toxicity" and row["value"] is not None for row in complete["results"].to_pylist())
    names = {row["passage_id"] for row in complete["passage_scores"].to_pylist() if row["concept"] == "toxicity"}
    assert names and "p1" not in names  # ids of real corpora name the document


def test_the_report_shows_the_run_and_escapes_what_it_quotes(
    made: tuple[Plan, Artifacts], complete: dict[str, pa.Table], tmp_path: Path
) -> None:
    failure = Failure("t1", "prober.probe", "failed", "<script>alert(1)</script>")
    page = (_finished(made[0], complete, tmp_path, [failure]).path / "report" / "index.html").read_text()
    for part in ("Leaderboard", "Response curves", "<svg", "S2_gradient", "not implemented", "contrast"):
        assert part in page
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_a_run_without_steering_is_reported_too(tmp_path: Path) -> None:
    config = load_run_config(None, {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "layers": [2]})
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=WIDTH)
    plan = make_plan(config, model, [get_strategy("A1_mean")])
    artifacts = Artifacts(FolderStore(tmp_path / "store"))
    Maker(plan, artifacts)._probes(plan.concepts["contrast"])
    page = _finished(plan, assemble(plan, artifacts, {}, "run-1"), tmp_path, []).path / "report" / "index.html"
    assert "D2 was not measured" in page.read_text()


def _finished(plan: Plan, tables: dict[str, pa.Table], output: Path, failures: list[Failure]) -> RunFolder:
    folder = RunFolder.create(output / "runs", plan.config)
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures(failures)
    write_report(folder)
    return folder


def test_d1_checks_concepts_and_compares_layers(tmp_path: Path) -> None:
    config = load_run_config(
        None,
        {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "layers": [2, 3], "layer_choice": "nested"},
    )
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=WIDTH)
    specs = [get_strategy(name) for name in ("A1_mean", "P1_last_token", "L5_keyword")]
    plan, artifacts = make_plan(config, model, specs), Artifacts(FolderStore(tmp_path))
    (cells,) = plan.concepts.values()
    values = {"A1_mean": 0.999, "P1_last_token": 0.995, "L5_keyword": 0.8}

    def measure(metric: str, strategy: str) -> dict[str, Any]:
        return Measure.of(metric, values[strategy], (0.7, 1.0), coverage=1.0, n=40).to_row()

    for (strategy, _), key in cells.measures.items():
        artifacts.write_table(key, t.table_from_rows([measure("d1.auroc", strategy)], t.MEASURES))
    for strategy, key in cells.nested.items():
        artifacts.write_table(key, t.table_from_rows([measure("d1.auroc_nested", strategy)], t.MEASURES))
    made = assemble(plan, artifacts, {}, "run-1")
    saturated = rows_of(made, metric="d1.saturation")
    assert [(row["layer"], round(row["value"], 3)) for row in saturated] == [(2, 0.667), (3, 0.667)]
    assert saturated[0]["reason"].startswith("saturated")
    (stability,) = rows_of(made, metric="rank.layer_stability")
    assert stability["value"] == pytest.approx(1)
    nested = rows_of(made, metric="d1.auroc_nested", strategy="A1_mean")
    assert [(row["layer"], row["value"]) for row in nested] == [(None, 0.999)]
    assert any(json.loads(row["params"])["of"] == "d1.auroc_nested" for row in rows_of(made, metric="rank.mean"))
    page = (_finished(plan, made, tmp_path, []).path / "report" / "index.html").read_text()
    assert "saturated: 2 of 3 strategies reach 0.99" in page
