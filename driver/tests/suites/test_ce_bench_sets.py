"""Probing sets in the suite ce-bench: what is refused, the plan, and the columns beside concepts."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
from driver.tests.suites.test_ce_bench import MODEL, config_of, put_sae

from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench.steps.prober import PROBE, SPARSE
from poolbench.storage import Artifacts, open_store
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.source import RowSource
from poolbench_driver.suites.ce_bench.concepts import POOLING, ConceptProbes, concept_rows, read_sets, readers
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, check, plan, resolve

TWO = ("planted-number", "planted-random")


@pytest.fixture
def saes(tmp_path: Path) -> Path:
    """Return a folder with two autoencoders of block 3 and one of block 1."""
    for seed, (name, block) in enumerate({"one": 3, "two": 3, "low": 1}.items()):
        put_sae(tmp_path / "saes" / name, seed, hook_name=f"blocks.{block}.hook_resid_post")
    return tmp_path / "saes"


def plan_of(tmp_path: Path, saes: Path, **settings: Any) -> CeBenchPlan:
    """Return the plan of a run with an empty store."""
    session: Any = SimpleNamespace(services=None, artifacts=Artifacts(open_store(str(tmp_path / "store"))))
    return plan(resolve(config_of(saes, **settings), session, MODEL))


def test_the_command_line_names_sets() -> None:
    config = load_run_config(None, {"suite": "ce-bench", "sets": ["planted-nu*"]})
    assert isinstance(config, CeBenchConfig) and list(read_sets(config).by_set) == ["planted-number"]
    assert config.hashed()["sets"] == ["planted-nu*"] and "sets" not in CeBenchConfig(suite="ce-bench").hashed()


def test_sets_are_refused_by_name_before_anything_runs(saes: Path) -> None:
    """The message has each set with its reason, and those that could be named."""
    with pytest.raises(ConfigError) as caught:
        check(config_of(saes, sets=("planted-*",)))
    said = str(caught.value)
    for reason in (
        "planted-relation: it has 3 labels (cause, concession, time)",
        "planted-depth: it asks for values",
        "planted-pos: its input is span",
        "planted-next-sentence: its input is text_pair",
        "planted-role: its input is span",
        "of the named ones: planted-agreement, planted-bigram-shift, planted-comparison, planted-number",
    ):
        assert reason in said
    with pytest.raises(UnknownNameError, match="planted-number"):
        check(config_of(saes, sets=("planted-numbr",)))
    with pytest.raises(CorpusError, match="no such set in corpus real"):
        check(config_of(saes, sets=("planted-number",), corpus={"source": "real"}))


def test_a_refused_set_ends_in_one_line(
    driver: Callable[..., CompletedProcess[str]], environment: dict[str, str]
) -> None:
    done = driver(environment, "run", "--suite", "ce-bench", "--sets", "planted-number,planted-pos")
    assert done.returncode == 2 and "planted-pos: its input is span" in done.stderr
    assert "Traceback" not in done.stderr


OWN = """id: {id}
type: syntax
phenomenon: own
input: text
source: own
revision: '1'
licence: CC0-1.0
citation: none
fidelity: same
reader: table
parameters: {{file: {id}.csv}}
"""


def test_sets_of_a_folder_are_read_and_a_damaged_one_is_left_out(saes: Path, tmp_path: Path) -> None:
    """The readers of the suite holmes read them. A set may not have the name of a concept of the run."""
    folder = tmp_path / "sets"
    folder.mkdir()
    for name in ("own", "hedging", "damaged"):
        (folder / f"{name}.yaml").write_text(OWN.format(id=name))
        lines = [f"{n},A text {n}.,{'ab'[n % 2]}" for n in range(40)]
        (folder / f"{name}.csv").write_text("\n".join(["id,text,label", *lines, "x,,a"]))
    (folder / "damaged.csv").write_text("nothing")
    config = config_of(saes, sets=("own", "damaged"), corpus={"source": str(folder)})
    found = read_sets(config)
    assert {split: table.num_rows for split, table in found.by_set["own"].items()} == {"train": 28, "test": 8}
    assert any("damaged" in note for note in found.notes) and len(found.notes) == 2
    assert set(found.notes) < set(plan_of(tmp_path, saes, sets=config.sets, corpus=config.corpus).scope.notes) | {""}
    with pytest.raises(ConfigError, match="hedging: a concept of the run has this name"):
        read_sets(config_of(saes, sets=("hedging",), concepts=("hedging",), corpus={"source": str(folder)}))
    with pytest.raises(CorpusError, match="no probing set can be read"):
        read_sets(config_of(saes, sets=("damaged",), corpus={"source": str(folder)}))


def test_every_entrant_probes_every_set_on_the_texts_of_d1(saes: Path, tmp_path: Path) -> None:
    made = plan_of(tmp_path, saes, sets=TWO)
    tasks = [task for task in made.tasks.values() if task.kind == SPARSE.kind]
    probes = [task for task in made.tasks.values() if task.kind == PROBE.kind]
    assert len(tasks) == len(probes) == 2 * 2  # sets and layers
    for sparse, dense in zip(tasks, probes, strict=True):
        own, others = SPARSE.params_of(sparse), PROBE.params_of(dense)
        for name in ("concept", "seed", "fold_seeds", "folds", "num_bootstrap", "primary_c", "tolerance"):
            assert getattr(own, name) == getattr(others, name), name
        for role in ("passages/train", "passages/test"):
            assert sparse.inputs[role] == dense.inputs[role] in made.local
        assert any(role.startswith("sae/") for role in dense.inputs)
    entrants = {"coordinates 3": 3, "coordinates 1": 1, "one": 3, "two": 3, "low": 1}
    entrants |= {f"{name} random": layer for name, layer in entrants.items() if not name.startswith("coord")}
    assert set(made.sets.sparse) == {(name, layer, entrant) for name in TWO for entrant, layer in entrants.items()}
    assert not made.concepts.sparse and set(made.sets.sparse.values()) <= set(made.producers)
    read = [task for task in made.tasks.values() if task.kind == "extractor.features"]
    assert len(read) == 2 + 2 * 2 * 2  # of each layer the stories, and both splits of each set
    inputs = {key for task in made.tasks.values() for key in task.inputs.values()}
    assert inputs <= set(made.local) | set(made.producers)


def test_a_set_leaves_the_keys_of_concepts_and_stories_alone(saes: Path, tmp_path: Path) -> None:
    alone = plan_of(tmp_path, saes / "one", concepts=("hedging",))
    both = plan_of(tmp_path, saes / "one", concepts=("hedging",), sets=("planted-number",))
    assert set(alone.producers) < set(both.producers) and both.concepts.sparse == alone.concepts.sparse
    params = {PROBE.params_of(task).concept: task.params for task in both.tasks.values() if task.kind == PROBE.kind}
    assert params["hedging"] | {"concept": "planted-number"} == params["planted-number"]


def test_sets_are_columns_beside_concepts(tmp_path: Path) -> None:
    """A set is the task of its rows, since a concept would have to be registered."""
    store = Artifacts(open_store(str(tmp_path)))
    for name, value in (("hedging", 0.9), ("planted-number", 0.7)):
        measures = [Measure.of("d1.auroc", value), Measure.of("d1.direction.C1", value - 0.1, direction="C1")]
        store.write_table(f"d1.{name}", t.table_from_rows([each.to_row() for each in measures], t.MEASURES))
        sparse = [Measure.of("sparse.auroc", value, params={"k": 1})]
        store.write_table(f"sparse.{name}", t.table_from_rows([each.to_row() for each in sparse], t.MEASURES))
    work = ConceptProbes(SimpleNamespace()).work  # type: ignore[arg-type]
    source, rows = RowSource(store, {}, {}), []
    for name, column in (("hedging", "concept"), ("planted-number", "task")):
        planned = ConceptProbes(work, {(name, 3): f"d1.{name}"}, {(name, 3, "one"): f"sparse.{name}"})
        rows += [{"task": "stories", **row} for row in concept_rows(planned, source, column)]
    assert {row["task"] for row in rows} == {"stories", "planted-number"}
    found = {each.name: each for each in readers(rows)}
    assert {name: dict(each.values) for name, each in found.items()} == {
        f"{POOLING}, probe of all dimensions": {"hedging": 0.9, "planted-number": 0.7},
        f"{POOLING} along C1": {"hedging": 0.8, "planted-number": pytest.approx(0.6)},
        "one, k = 1": {"hedging": 0.9, "planted-number": 0.7},
    }
    assert found["one, k = 1"].mean == pytest.approx(0.8)
