"""Kept and imported states, and a probing set, through the plan and the services' own handlers."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.config import asset_path
from poolbench.contracts import Row
from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import STRATEGIES
from poolbench.pooling.states import read_states
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_corpora.probing import PROBING_SETS
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.source import RowSource
from poolbench_driver.imports.activation_files import ActivationReader
from poolbench_driver.imports.activations import Importer
from poolbench_driver.imports.states import imported_model
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, committed_keys
from poolbench_driver.suites.ce_bench.concepts import concept_rows, readers
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan

pytestmark = pytest.mark.lane(name="series")

LAYERS = [1, 4]
FIRST = ["A1_mean", "S1_attention"]
SERVED = [s.id for s in STRATEGIES.all() if s.served_by_kept_states]
BUDGET = {"num_train": 40, "num_test": 20, "num_bootstrap": 50}
SETTINGS: dict[str, Any] = {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "budget": BUDGET}


@pytest.fixture(scope="module")
def handlers() -> dict[str, Callable[[Task, TaskIO], None]]:
    """The tasks that these runs consist of, by kind."""
    from poolbench_extractor.service import create as extractor
    from poolbench_pooler.service import create as pooler
    from poolbench_prober.service import create as prober

    for asset in ("demo_lm", "annotator"):
        asset_path(asset)
    return {**extractor().handlers, **pooler().handlers, **prober().handlers}


class Runner:
    """A store, and plans carried out in it."""

    def __init__(self, folder: Path, handlers: dict[str, Callable[[Task, TaskIO], None]]) -> None:
        self.artifacts, self.handlers = Artifacts(FolderStore(folder)), handlers

    def plan(self, strategies: Iterable[str], **settings: Any) -> ConceptsPlan:
        config = load_run_config(None, {**SETTINGS, "layers": LAYERS, **settings})
        specs = [STRATEGIES.get(name) for name in strategies]
        model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: nobody is asked
        return make_plan(
            Scope(config, model, specs, annotator_version("annotator"), present=committed_keys(self.artifacts))
        )

    def carry_out(self, plan: Plan) -> Counter[str]:
        """Does what is missing; returns the kinds of the tasks done."""
        done: Counter[str] = Counter()
        for step in plan.local.values():
            if not self.artifacts.exists(step.key):
                self.artifacts.write_table(step.key, step.build())
        for task in plan.tasks.values():
            io = TaskIO(task, self.artifacts)
            if io.missing:
                self.handlers[task.kind](task, io)
                done[task.kind] += 1
                assert not io.missing
        return done


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, handlers: dict[str, Any]) -> Runner:
    """A store after a run of two strategies that kept its states."""
    runner = Runner(tmp_path_factory.mktemp("kept"), handlers)
    done = runner.carry_out(runner.plan(FIRST, keep_activations=True))
    assert done == {"pooler.annotate": 2, "extractor.extract": 2, "prober.probe": 2}
    return runner


def test_added_strategies_never_touch_the_model_and_agree_with_it(
    kept: Runner, handlers: dict[str, Any], tmp_path: Path
) -> None:
    pooled = kept.plan(SERVED, keep_activations=True)
    done = kept.carry_out(pooled)
    assert done["pooler.pool"] == 4 and set(done) == {"pooler.pool", "prober.probe"}
    extracted = Runner(tmp_path, handlers)
    other = extracted.plan(SERVED)
    wanted = other.vectors.concepts["contrast"].vectors
    assert wanted == pooled.vectors.concepts["contrast"].vectors
    assert set(extracted.carry_out(other)) == {"pooler.annotate", "extractor.extract", "prober.probe"}
    for (split, strategy, layer), key in wanted.items():
        here, there = kept.artifacts.read_table(key), extracted.artifacts.read_table(key)
        for name in ("passage_id", "applied", "token_share", "status", "reason"):
            assert here[name].equals(there[name]), (strategy, name)
        a, b = vector_matrix(here["vector"]), vector_matrix(there["vector"])
        gaps = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
        assert gaps.max() <= 1e-5, (split, strategy, layer, gaps.max())


@pytest.mark.parametrize(
    "strategy",
    [pytest.param("X1_learned_query", marks=pytest.mark.lane(name="simulations")), "R1_mean_score", "R2_max_score"],
)
def test_what_is_learned_of_tokens_needs_no_more_than_the_states(kept: Runner, strategy: str) -> None:
    plan = kept.plan(["A1_mean", strategy], layers=[4])
    assert kept.carry_out(plan) == {"prober.probe": 1}
    rows = assemble(plan, kept.artifacts, {}, "run")["results"].to_pylist()
    found = [r for r in rows if r["strategy"] == strategy and r["metric"].startswith("d1.auroc")]
    assert {r["layer"] for r in found} == {4} and {"d1.auroc", "d1.auroc_test"} < {r["metric"] for r in found}
    for row in found:
        assert row["status"] == "ok" or row["metric"] == "d1.auroc_domain", row["reason"]
    directions = kept.artifacts.read_table(plan.probes.concepts["contrast"].directions[strategy, 4])
    vector = vector_matrix(directions["vector"])[directions["direction_id"].to_pylist().index("C1")]
    assert vector.shape == (plan.scope.model.width,) and np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def published(kept: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same states as somebody else would publish them: a corpus, and a dictionary of layers a passage."""
    corpus, files = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("files")
    budget = load_run_config(None, SETTINGS).budget
    sizes = {"num_train": budget.num_train, "num_test": budget.num_test, "num_scorer": budget.num_scorer}
    table = build_planted("contrast", **sizes, seed=0)
    write_corpus(table, corpus, CorpusManifest(revision="1", tokenizer="words", window=(0, 1000), recipe="a test"))
    (files / "contrast").mkdir()
    states: dict[str, dict[int, np.ndarray]] = {}
    for task in kept.plan(FIRST, keep_activations=True).tasks.values():
        for role, key in task.outputs.items():
            if role.startswith("states/"):
                for shard in kept.artifacts.read_shards(key):
                    for passage in read_states(shard):
                        states.setdefault(passage.passage_id, {})[int(role.rpartition("/")[2])] = passage.hidden_TD
    for passage_id, by_layer in states.items():
        holder = np.empty((), dtype=object)
        holder[()] = by_layer
        np.save(files / "contrast" / f"{passage_id.replace('/', '_')}.npy", holder, allow_pickle=True)
    for file in (corpus / "contrast").glob("*.jsonl"):  # file names hold no slash, so published ids do not either
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        lines = [json.dumps({**row, "id": row["id"].replace("/", "_")}) + "\n" for row in rows]
        file.write_text("".join(lines), "utf-8")
    return corpus, files


def test_d1_of_imported_activations_is_that_of_the_model(kept: Runner, published: tuple[Path, Path]) -> None:
    corpus, files = published
    reader = ActivationReader(None, trust_pickle=True)
    record = Importer(kept.artifacts, files, corpus, reader, bos=True, say=lambda _: None).run("mine", ["contrast"])
    config = load_run_config(None, {**record.settings(), "budget": {**BUDGET, "name": "demo"}})
    names = ["A1_mean", "A2_max", "W2_last_k", "L3_entity", "S1_attention"]
    model = imported_model(config, kept.artifacts)
    plan = make_plan(Scope(config, model, [STRATEGIES.get(n) for n in names], present=committed_keys(kept.artifacts)))
    assert set(kept.carry_out(plan)) == {"pooler.pool", "prober.probe"}
    rows = assemble(plan, kept.artifacts, {}, "run")["results"].to_pylist()
    found = {(r["strategy"], r["layer"]): r for r in rows if r["metric"] == "d1.auroc"}
    for layer in LAYERS:
        for name in names[:3]:
            assert found[name, layer]["status"] == "ok" and 0 <= found[name, layer]["value"] <= 1
        assert "no character offsets" in found["L3_entity", layer]["reason"]
        assert "no inflow" in found["S1_attention", layer]["reason"]
        assert {found[name, layer]["status"] for name in names[3:]} == {"failed"}
    assert {r["model_revision"] for r in rows} == {record.revision}
    direct = kept.plan(names[:1])
    assert not kept.carry_out(direct)
    measured = assemble(direct, kept.artifacts, {}, "run")["results"].to_pylist()
    for row in measured:
        if row["metric"] == "d1.auroc":
            assert found["A1_mean", row["layer"]]["value"] == pytest.approx(row["value"], abs=1e-6)


NAME = "planted-number"
SPARSE_SETTINGS = {"suite": "ce-bench", "saes": ["topk-512"], "sets": [NAME], "budget": {"num_bootstrap": 50}}
Finished = tuple[CeBenchPlan, Artifacts, list[Row]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run with one set; the stories are left out."""
    from poolbench_extractor.service import create as extractor
    from poolbench_prober.service import create as prober

    suite: Any = SUITES.get("ce-bench").load()
    artifacts = Artifacts(FolderStore(tmp_path_factory.mktemp("store")))
    session = SimpleNamespace(services=None, artifacts=artifacts)
    plan = suite.plan(suite.resolve(load_run_config(None, SPARSE_SETTINGS), session))
    for key, step in plan.local.items():
        made = step.build()
        (artifacts.write_table if isinstance(made, pa.Table) else artifacts.write)(key, made)
    handlers = {**extractor().handlers, **prober().handlers}
    for task in plan.sets.work.tasks.values():
        io = TaskIO(task, artifacts)
        handlers[task.kind](task, io)
        assert not io.missing
    return plan, artifacts, list(concept_rows(plan.sets, RowSource(artifacts, {}, plan.producers), "task"))


def test_the_split_is_that_of_the_probing_task(finished: Finished) -> None:
    """The suite holmes gives the same instances to train and test with the same seed."""
    from poolbench_prober.probing import Targets

    targets = Targets.from_table(PROBING_SETS.read(PROBING_SETS.get(NAME)).instances)
    for split, rows in targets.split(finished[0].config.seed).items():
        if split != "dev":
            table = finished[0].scope.sets.by_set[NAME][split]
            assert set(table["passage_id"].to_pylist()) == {targets.ids[row] for row in rows}
            classes = dict(zip(targets.ids, targets.values, strict=True))
            assert [classes[name] for name in table["passage_id"].to_pylist()] == table["label"].to_pylist()


def test_features_and_directions_read_the_set(finished: Finished) -> None:
    """Singular and plural subjects: any probe of the model's states knows them, and one trained feature does."""
    found = {each.name: each.values[NAME] or np.nan for each in readers(finished[2])}
    assert {f"A1_mean along {name}" for name in ("C1", "C2", "C3", "C4", "C5")} <= set(found)
    assert found["A1_mean, probe of all dimensions"] > 0.9
    for k in (1, 2, 5):
        assert found[f"topk-512, k = {k}"] > max(0.75, found[f"topk-512 random, k = {k}"])


def test_a_probe_of_one_feature_ranks_by_that_feature(finished: Finished) -> None:
    """On the test split, the AUROC is that of the named feature itself, up to its sign: by sorting, in NumPy alone."""
    plan, artifacts, rows = finished
    (row,) = (
        row
        for row in rows
        if (row["entrant"], row["metric"]) == ("topk-512", "sparse.auroc_test") and json.loads(row["params"])["k"] == 1
    )
    (feature,) = json.loads(row["details"])["features"]
    labels = plan.scope.sets.by_set[NAME]["test"].select(["passage_id", "label"]).to_pydict()
    (task,) = (task for task in plan.sets.work.tasks.values() if task.kind == "prober.sparse")
    key = next(key for role, key in task.inputs.items() if role.startswith("features/") and _reads(plan, key, "test"))
    values = {
        each["passage_id"]: dict(zip(each["features"], each["means"], strict=True)).get(feature, 0.0)
        for each in artifacts.read_table(key).to_pylist()
        if each["part"] == "all"
    }
    x = np.array([values[name] for name in labels["passage_id"]])
    y = np.array(labels["label"])
    wins = np.sign(x[y == 1][:, None] - x[y == 0][None, :])
    share = float((wins + 1).mean() / 2)
    assert row["value"] == pytest.approx(max(share, 1 - share), abs=1e-9)


def _reads(plan: CeBenchPlan, key: str, split: str) -> bool:
    """Return whether a key holds the features of the autoencoder, not of its random twin, on a split."""
    task = plan.producers[key]
    role = next(role for role, output in task.outputs.items() if output == key)
    passages = plan.local[task.inputs["passages"]].build()
    return role.startswith("features/") and set(passages["split"].to_pylist()) == {split}
