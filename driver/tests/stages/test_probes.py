"""Options of D1 in the plan: autoencoders, the nested choice of a layer, seeds of folds."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.directions import SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, WEIGHTS_FILE
from poolbench.errors import ConfigError, InputError
from poolbench.pooling.registry import STRATEGIES
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.imports.saes import SaeInput, sae_inputs
from poolbench_driver.loop import RunLoop
from poolbench_driver.loop.progress import open_display
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, PlannedWork

WIDTH = 4
MODEL = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=WIDTH)
POOLED = ["A1_mean", "P1_last_token"]


def config_of(**settings: object) -> ConceptsConfig:
    chosen = {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "layers": [2, 3], **settings}
    return load_run_config(None, chosen)


def plan_of(found: dict[int, SaeInput] | None = None, **settings: object) -> Plan:
    return make_plan(Scope(config_of(**settings), MODEL, [STRATEGIES.get(name) for name in POOLED], saes=found or {}))


def probes(plan: Plan) -> dict[str, Task]:
    """Probing tasks by layer."""
    return {next(iter(t.outputs)).rpartition("/")[2]: t for t in plan.tasks.values() if t.kind == "prober.probe"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"W_enc": (WIDTH, 9), "W_dec": (9, WIDTH), "b_dec": (WIDTH,), "b_enc": (9,)}
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path / "sae"
    path.mkdir()
    (path / "weights.safetensors").write_bytes(save(tensors))
    (path / "cfg.json").write_text(json.dumps({"architecture": "relu"}))
    return path


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def test_an_autoencoder_moves_the_probes_of_its_layer_and_no_other(folder: Path, artifacts: Artifacts) -> None:
    settings: dict[str, object] = {"saes": [{"layer": 3, "path": str(folder), "num_features": 5}]}
    saes = sae_inputs(config_of(**settings), MODEL, artifacts)
    before, after = probes(plan_of()), probes(plan_of(saes, **settings))
    assert before["2"] == after["2"]
    assert not set(before["3"].outputs.values()) & set(after["3"].outputs.values())
    assert after["3"].inputs["sae/3"] == saes[3].key
    assert after["3"].params["sae_features"] == 5


def test_its_key_is_what_it_holds(folder: Path, artifacts: Artifacts, tmp_path: Path) -> None:
    def key(path: Path) -> str:
        return sae_inputs(config_of(saes=[{"layer": 2, "path": str(path)}]), MODEL, artifacts)[2].key

    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert key(copy) == key(folder)
    (copy / "cfg.json").write_text(json.dumps({"architecture": "relu", "apply_b_dec_to_input": True}))
    assert key(copy) != key(folder)


def test_the_driver_stores_it_and_a_run_can_name_it_by_key(folder: Path, artifacts: Artifacts, tmp_path: Path) -> None:
    config = config_of(saes=[{"layer": 2, "path": str(folder)}])
    (sae,) = sae_inputs(config, MODEL, artifacts).values()
    plan = plan_of({2: sae})
    plan = Plan(plan.config, PlannedWork({}, {sae.key: plan.local[sae.key]}), plan.facts)
    broker = Broker(f"filesystem://{tmp_path / 'queue'}")
    loop = RunLoop(plan, artifacts, TaskQueue(broker), FolderLeases(tmp_path / "leases"), open_display("none"))
    assert loop.run() == {}
    found = SparseAutoencoder.from_bytes(*(artifacts.read(sae.key, name) for name in (WEIGHTS_FILE, CONFIG_FILE)))
    assert (found.width, found.num_features) == (WIDTH, 9)
    again = sae_inputs(config_of(saes=[{"layer": 2, "path": sae.key}]), MODEL, artifacts)
    assert again == {2: SaeInput(sae.key, 10)}


def test_wrong_autoencoders_are_refused_before_the_run(folder: Path, artifacts: Artifacts) -> None:
    def refuse(message: str, error: type[Exception] = ConfigError, model: ModelInfo = MODEL, **sae: object) -> None:
        with pytest.raises(error, match=message):
            sae_inputs(config_of(saes=[{"layer": 2, "path": str(folder), **sae}]), model, artifacts)

    refuse(r"layer 4 must be one of \[2, 3\], once", layer=4)
    refuse("reads width 4; the model's states have 8", model=ModelInfo(MODEL.ref, 6, 8))
    refuse("the object store has no import.sae.0123", path="import.sae.0123")
    refuse("one .safetensors file", InputError, path=str(folder / "nothing"))
    with pytest.raises(ConfigError, match="num_features"):
        config_of(saes=[{"layer": 2, "path": "x", "num_features": 0}])


def test_the_nested_choice_is_one_task_a_concept_with_the_vectors_of_every_layer() -> None:
    plain, nested = plan_of(), plan_of(layer_choice="nested")
    (task,) = (t for t in nested.tasks.values() if t.kind == "prober.layers")
    assert set(task.outputs) == {f"measures/{name}" for name in POOLED}
    assert {f"{split}/A1_mean/{layer}" for split in ("train", "test") for layer in (2, 3)} <= set(task.inputs)
    assert {task_id: t for task_id, t in nested.tasks.items() if t != task} == plain.tasks
    assert not [t for t in plan_of(layer_choice="nested", layers=[2]).tasks.values() if t.kind == "prober.layers"]
    further = plan_of(layer_choice="nested", layers=[2, 3, 4])
    assert set(further.probes.concepts["contrast"].nested.values()).isdisjoint(task.outputs.values())


def test_no_text_is_steered_again_for_more_resamples_or_folds() -> None:
    """At a card's budget that would be hours: directions depend on the train split and the seed alone."""

    def steered(**settings: object) -> tuple[set[str], set[str]]:
        plan = plan_of(metrics=["d1", "d2"], **settings)
        cells, texts = plan.probes.concepts["contrast"], plan.steering.texts.concepts["contrast"].texts
        return {*cells.directions.values(), *texts.values()}, set(cells.measures.values())

    plain, measures = steered()
    budget = load_run_config(None, {"preset": "demo"}).budget
    for settings in (
        {"fold_seeds": [1, 2]},
        {"budget": budget.model_copy(update={"num_bootstrap": 50}).model_dump()},
    ):
        same, others = steered(**settings)
        assert same == plain, settings
        assert not others & measures, settings
    assert not steered(seed=1)[0] & plain
