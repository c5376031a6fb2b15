"""Kept states that are present make vectors; the plan stays a pure function of configuration and what is there."""

from __future__ import annotations

from collections.abc import Iterable

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan

MODEL = ModelInfo(ModelRef("demo", "somewhere", "local-0123", "float32"), num_blocks=6, width=256)
FEW = ("A1_mean", "L3_entity")
#: Asks for a gradient, so kept states cannot give it.
GRADIENT = next(s for s in STRATEGIES.all() if "gradient" in s.needs)


def plan_of(strategies: Iterable[str], present: Iterable[str] = (), **overrides: object) -> Plan:
    settings = {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "layers": [2, 5], **overrides}
    specs = [STRATEGIES.get(name) for name in strategies]
    return make_plan(Scope(load_run_config(None, settings), MODEL, specs, "1", present=frozenset(present)))


def tasks(plan: Plan, kind: str) -> list[Task]:
    return [task for task in plan.tasks.values() if task.kind == kind]


def keys(plan: Plan) -> set[str]:
    return set(plan.local) | {key for task in plan.tasks.values() for key in task.outputs.values()}


def finished() -> set[str]:
    """The store after a run that kept its states."""
    return keys(plan_of(FEW, keep_activations=True))


def test_without_kept_states_the_extractor_makes_everything() -> None:
    plan = plan_of(FEW, keep_activations=True)
    assert not tasks(plan, "pooler.pool")
    for task in tasks(plan, "extractor.extract"):
        assert set(task.outputs) == {f"{name}/{layer}" for name in (*FEW, "states") for layer in (2, 5)}


def test_a_finished_run_is_planned_as_it_was() -> None:
    first = plan_of(FEW, keep_activations=True)
    again = plan_of(FEW, finished(), keep_activations=True)
    assert again.tasks == first.tasks


def test_an_added_strategy_is_pooled_from_kept_states() -> None:
    present = finished()
    plan = plan_of([*FEW, "A2_max", "L6_sentence"], present, keep_activations=True)
    todo = [task for task in plan.tasks.values() if not present.issuperset(task.outputs.values())]
    assert {task.kind for task in todo} == {"pooler.pool", "prober.probe"}
    pooling = tasks(plan, "pooler.pool")
    assert sorted(tuple(sorted(task.outputs)) for task in pooling) == sorted(
        [("A2_max/2", "L6_sentence/2"), ("A2_max/5", "L6_sentence/5")] * 2  # train and test
    )
    for task in pooling:
        assert present.issuperset(task.inputs.values())
        assert set(task.inputs) == {next(role for role in task.inputs if role.startswith("states/")), "annotations"}


def test_vectors_have_the_same_keys_from_states_and_from_the_model() -> None:
    wanted = [*FEW, "A2_max"]
    served, extracted = plan_of(wanted, finished()).vectors, plan_of(wanted).vectors
    assert served.concepts["contrast"].vectors == extracted.concepts["contrast"].vectors


def test_states_serve_a_run_that_keeps_none_itself() -> None:
    plan = plan_of([*FEW, "A2_max"], finished())
    assert tasks(plan, "pooler.pool") and not any("states/2" in task.outputs for task in plan.tasks.values())


def test_annotations_are_read_only_where_a_strategy_asks() -> None:
    assert all("annotations" not in task.inputs for task in tasks(plan_of(["A2_max"], finished()), "pooler.pool"))


def test_what_kept_states_lack_goes_to_the_extractor() -> None:
    assert not GRADIENT.served_by_kept_states and STRATEGIES.get("S1_attention").served_by_kept_states
    plan = plan_of([*FEW, "A2_max", GRADIENT.id], finished())
    assert all(not role.startswith(GRADIENT.id) for task in tasks(plan, "pooler.pool") for role in task.outputs)
    assert any(f"{GRADIENT.id}/2" in task.outputs for task in tasks(plan, "extractor.extract"))


def test_a_layer_without_states_is_extracted() -> None:
    present = finished()
    plan = plan_of([*FEW, "A2_max"], present, layers=[2, 4])
    assert {role for task in tasks(plan, "pooler.pool") for role in task.outputs} == {"A2_max/2"}
    (train, test) = tasks(plan, "extractor.extract")
    assert {"A2_max/4", "A1_mean/4", "A1_mean/2"} <= set(train.outputs) == set(test.outputs)


def test_each_key_has_one_producer() -> None:
    plan = plan_of([*FEW, "A2_max"], finished(), keep_activations=True)
    made = [key for task in plan.tasks.values() for key in task.outputs.values()]
    assert len(made) == len(set(made))


def test_a_strategy_that_reads_states_has_them_kept() -> None:
    plan = plan_of([*FEW, "X1_learned_query"])
    for task in tasks(plan, "extractor.extract"):
        assert set(task.outputs) == {f"{name}/{layer}" for name in (*FEW, "states") for layer in (2, 5)}
        assert task.params["keep_activations"] and [item["id"] for item in task.params["strategies"]] == list(FEW)
    kept = keys(plan_of(FEW, keep_activations=True))
    for task in tasks(plan, "prober.probe"):
        states = {key for role, key in task.inputs.items() if "/X1_learned_query/" in role}
        assert len(states) == 2 and states <= kept
    first = [key for task in tasks(plan_of(FEW), "prober.probe") for key in task.outputs.values()]
    assert set(first) < keys(plan)  # the cells of the other strategies stay what they were
    again = plan_of([*FEW, "X1_learned_query"], finished())
    assert {task.kind for task in again.tasks.values() if not finished().issuperset(task.outputs.values())} == {
        "prober.probe"
    }


def test_imported_states_are_read_where_they_lie() -> None:
    config = load_run_config(None, {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"]})
    plan = make_plan(Scope(config, IMPORTED, [STRATEGIES.get("X1_learned_query")]))
    assert {task.kind for task in plan.tasks.values()} == {"prober.probe"}
    assert set(plan.vectors.concepts["contrast"].vectors.values()) == set(IMPORTED.imported.values())


IMPORTED = ModelInfo(
    ModelRef("import:mine", "import:mine", "import-0123", "as imported"),
    num_blocks=6,
    width=256,
    imported={("contrast", s, n): f"import.states.{s}.{n}" for s in ("train", "test") for n in (2, 5)},
)


def test_imported_states_are_pooled_and_nothing_is_extracted() -> None:
    config = load_run_config(None, {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"]})
    wanted = [STRATEGIES.get(name) for name in ("A1_mean", "L3_entity", "S1_attention")]
    plan = make_plan(Scope(config, IMPORTED, wanted))
    assert {task.service for task in plan.tasks.values()} == {"pooler", "prober"} and plan.scope.layers == [2, 5]
    assert not tasks(plan, "pooler.annotate")
    inputs = {key for task in tasks(plan, "pooler.pool") for key in task.inputs.values()}
    assert inputs == set(IMPORTED.imported.values())
    assert set(plan.facts.imported) == inputs
    assert all("poolbench-driver import activations FOLDER --name" in how for how in plan.facts.imported.values())


def test_other_imported_files_move_the_vectors() -> None:
    config = load_run_config(None, {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"]})
    moved = {name: f"{key}.changed" for name, key in IMPORTED.imported.items()}
    other = ModelInfo(IMPORTED.ref, 6, 256, moved)
    plans = [make_plan(Scope(config, model, [STRATEGIES.get("A1_mean")])) for model in (IMPORTED, other)]
    before, after = (set(plan.vectors.concepts["contrast"].vectors.values()) for plan in plans)
    assert not before & after
