"""The plan is a pure function of configuration and what is there; keys move with what they depend on."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from poolbench.concepts import CONCEPTS
from poolbench.config import ModelRef, folder_revision
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.pooling.registry import STRATEGIES, select_strategies, strategies_of
from poolbench.readouts import READOUTS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import dataset_revision, passages_step, require_seed_words, run_dataset
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope, left_out
from poolbench_driver.stages.stage import Plan
from poolbench_driver.stages.steering import NULLS

MODEL = ModelInfo(ModelRef("demo", "somewhere", "local-0123", "float32"), num_blocks=6, width=256)
SPLITS = ("train", "test", "scorer")
#: The published definitions, on what the corrected protocol reads.
PUBLISHED = {"protocol": "published", "sinks": "exclude", "include_bos": False}


def plan_of(model: ModelInfo = MODEL, **overrides: object) -> Plan:
    config = load_run_config(None, {"preset": "demo", **overrides})
    return make_plan(Scope(config, model, select_strategies()))


def output_keys(plan: Plan) -> set[str]:
    return {key for task in plan.tasks.values() for key in task.outputs.values()}


def test_more_openings_move_only_what_is_steered() -> None:
    """More openings move the steered texts, but no vector, probe or scorer."""
    budget = load_run_config(None, {"preset": "demo"}).budget
    wider = budget.model_copy(update={"num_openings": 30})
    before, after = plan_of(), plan_of(budget=wider.model_dump(mode="json"))
    kept = {"extractor.extract", "prober.probe", "scorer.train", "pooler.annotate", "prober.nulls"}
    for kind in kept:
        assert _keys_of(before, kind) == _keys_of(after, kind), kind
    assert not _keys_of(before, "steerer.generate") & _keys_of(after, "steerer.generate")


def test_another_model_moves_everything_but_annotations_and_scorers() -> None:
    other = ModelInfo(ModelRef("demo", "somewhere", "local-9999", "float32"), num_blocks=6, width=256)
    before, after = plan_of(), plan_of(other)
    for kind in ("pooler.annotate", "scorer.train"):
        assert _keys_of(before, kind) == _keys_of(after, kind)
    for kind in ("extractor.extract", "prober.probe", "steerer.generate", "scorer.gate"):
        assert not _keys_of(before, kind) & _keys_of(after, kind)


def test_published_scorers_are_named_by_what_their_folder_holds(tmp_path: Path) -> None:
    """A run takes them as they are: a folder a concept, the stated label, and keys that move with the weights."""
    chosen = {"scorer_mode": "import", "scorer_base": str(tmp_path), "scorer_positive_label": "LABEL_1"}
    for concept in ("contrast", "hedging"):
        (tmp_path / concept).mkdir()
        (tmp_path / concept / "config.json").write_text("{}")
    before = plan_of(concepts=["contrast"], **chosen)
    (params,) = (
        t.params for t in before.tasks.values() if t.kind == "scorer.train" and t.params["concept"] == "contrast"
    )
    revision = folder_revision(tmp_path / "contrast")
    expected = {"mode": "import", "subfolder": "contrast", "positive_label": "LABEL_1", "revision": revision}
    assert {name: params[name] for name in expected} == expected
    (tmp_path / "contrast" / "config.json").write_text('{"other": 1}')
    after = plan_of(concepts=["contrast"], **chosen)
    moved = _keys_of(before, "scorer.train") - _keys_of(after, "scorer.train")
    assert len(moved) == 2  # the scorer of contrast and its measures, not hedging's or causation's


def test_a_published_scorer_needs_its_label_stated() -> None:
    with pytest.raises(ConfigError, match="needs scorer_positive_label"):
        load_run_config(None, {"preset": "demo", "scorer_mode": "import", "scorer_base": "someone/scorers"})
    with pytest.raises(ConfigError, match="no other mode takes it"):
        load_run_config(None, {"preset": "demo", "scorer_positive_label": "1"})


def test_another_annotator_moves_only_the_strategies_that_read_annotations() -> None:
    before, after = plan_of(), plan_of(annotator="en_core_web_sm")
    shared = _keys_of(before, "extractor.extract") & _keys_of(after, "extractor.extract")
    reading = [s for s in before.scope.strategies if "annotation" in s.needs]
    assert len(_keys_of(before, "extractor.extract") - shared) == len(shared) * len(reading) / (
        len(before.scope.strategies) - len(reading)
    )


def test_sensitive_concepts_have_restricted_keys_throughout() -> None:
    plan = plan_of(concepts=["toxicity", "contrast"])
    cells, directions = plan.vectors.concepts["toxicity"], plan.probes.concepts["toxicity"].directions
    nulls = plan.steering.texts.concepts["toxicity"].texts[NULLS]
    own = [*cells.passages.values(), *cells.vectors.values(), *directions.values(), *nulls]
    assert all(key.startswith("restricted.") for key in own)
    assert not any(key.startswith("restricted.") for key in plan.vectors.concepts["contrast"].vectors.values())


def _keys_of(plan: Plan, kind: str) -> set[str]:
    return {key for task in plan.tasks.values() if task.kind == kind for key in task.outputs.values()}


def test_other_triggers_move_the_vectors_that_look_at_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["A1_mean", "L2_dependency_trigger"]
    config = load_run_config(None, {"preset": "demo", "concepts": ["causation"], "metrics": ["d1"]})
    specs = [STRATEGIES.get(name) for name in names]
    before = make_plan(Scope(config, MODEL, specs)).vectors.concepts["causation"].vectors
    changed = dataclasses.replace(CONCEPTS.get("causation"), triggers=("because",))
    monkeypatch.setitem(CONCEPTS._items, "causation", changed)
    after = make_plan(Scope(config, MODEL, specs)).vectors.concepts["causation"].vectors
    moved = {strategy for (split, strategy, layer), key in before.items() if after[split, strategy, layer] != key}
    assert moved == {"L2_dependency_trigger"}


def supervised_plan(names: list[str], **overrides: object) -> Plan:
    return make_plan(Scope(load_run_config(None, {"preset": "demo", **overrides}), MODEL, select_strategies(names)))


def test_what_is_run_on_request_is_planned_only_where_it_is_named() -> None:
    assert "S3_iti_probe" not in {spec.id for spec in plan_of().scope.strategies}
    assert "S3_iti_probe" in left_out(select_strategies())
    named = select_strategies(["card", "S3_iti_probe", "A1_mean"])
    assert {*named} == {*strategies_of("card")} and len(named) == 19
    assert left_out(named) == ""
    before, after = plan_of(), supervised_plan(["card", "S3_iti_probe"])
    assert output_keys(before) < output_keys(after)


def test_the_readout_enters_the_keys_of_its_own_strategies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = supervised_plan(["A1_mean", "S3_iti_probe"])
    newer = dataclasses.replace(READOUTS.get("best_heads"), version=99)
    monkeypatch.setitem(READOUTS._items, "best_heads", newer)
    after = supervised_plan(["A1_mean", "S3_iti_probe"])
    assert _keys_of(before, "extractor.extract") == _keys_of(after, "extractor.extract")
    for concept, cells in before.probes.concepts.items():
        same = {cell for cell, key in cells.measures.items() if after.probes.concepts[concept].measures[cell] == key}
        assert {strategy for strategy, _ in same} == {"A1_mean"}


def sif_plan(*names: str, concepts: tuple[str, ...] = ("causation", "contrast"), **overrides: object) -> Plan:
    return supervised_plan([*names, "S4_sif"], concepts=list(concepts), **overrides)


def test_the_concepts_of_the_run_move_the_keys_of_sif_alone() -> None:
    before = sif_plan("A1_mean", metrics=["d1"])
    after = sif_plan("A1_mean", metrics=["d1"], concepts=("contrast", "causation", "toxicity"))
    for concept in before.scope.config.concepts:
        vectors = [plan.vectors.concepts[concept].vectors for plan in (before, after)]
        probes = [plan.probes.concepts[concept] for plan in (before, after)]
        stores = [[getattr(own, part) for own in probes] for part in ("measures", "directions", "scores")]
        for old, new in [vectors, *stores]:
            assert {cell for cell in old if old[cell] != new[cell]} == {cell for cell in old if "S4_sif" in cell}
    assert before.tasks.keys() == sif_plan("A1_mean", metrics=["d1"], concepts=("contrast", "causation")).tasks.keys()


def test_sif_adds_keys_and_moves_none_and_no_other_task_waits_for_all_concepts() -> None:
    before, after = supervised_plan(["A1_mean"]), supervised_plan(["A1_mean", "S4_sif"])
    assert output_keys(before) < output_keys(after)
    made, producers = set(after.local), after.producers
    for task in after.tasks.values():
        assert all(key in made or producers[key].task_id in made for key in task.inputs.values()), task.kind
        made.add(task.task_id)
        if task.kind in ("prober.probe", "prober.directions"):
            reads = {role.split("/")[0] for role in task.inputs}
            assert ("component" in reads) == any("/S4_sif/" in role for role in task.outputs)
            assert "component" not in reads or not any("/A1_mean/" in role for role in task.outputs)
    assert not any(kind.endswith((".count", ".component")) for kind in {t.kind for t in before.tasks.values()})


def test_a_sensitive_concept_in_the_run_restricts_what_is_learned_from_it() -> None:
    plan = sif_plan("A1_mean", concepts=("toxicity", "contrast"), metrics=["d1"])
    keys = plan.vectors.concepts["contrast"].vectors
    assert all(key.startswith("restricted.") == (cell[1] == "S4_sif") for cell, key in keys.items())


def test_the_published_protocol_adds_cells_with_keys_of_their_own_and_shares_the_vectors() -> None:
    corrected = plan_of(metrics=["d1"])
    published = plan_of(metrics=["d1"], **PUBLISHED)
    assert _keys_of(corrected, "extractor.extract") == _keys_of(published, "extractor.extract")
    added = _keys_of(published, "prober.probe") - _keys_of(corrected, "prober.probe")
    assert _keys_of(corrected, "prober.probe") < _keys_of(published, "prober.probe")
    assert added == {key for cells in published.probes.concepts.values() for key in cells.published.values()}
    seeded = plan_of(metrics=["d1"], **PUBLISHED, seed=7)
    assert added <= _keys_of(seeded, "prober.probe")


FEW = ("A1_mean", "L3_entity")
#: Asks for a gradient, so kept states cannot give it.
GRADIENT = next(s for s in STRATEGIES.all() if "gradient" in s.needs)


def plan_with(strategies: Iterable[str], present: Iterable[str] = (), **overrides: object) -> Plan:
    settings = {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1"], "layers": [2, 5], **overrides}
    specs = [STRATEGIES.get(name) for name in strategies]
    return make_plan(Scope(load_run_config(None, settings), MODEL, specs, "1", present=frozenset(present)))


def tasks(plan: Plan, kind: str) -> list[Task]:
    return [task for task in plan.tasks.values() if task.kind == kind]


def keys(plan: Plan) -> set[str]:
    return set(plan.local) | {key for task in plan.tasks.values() for key in task.outputs.values()}


def finished() -> set[str]:
    """The store after a run that kept its states."""
    return keys(plan_with(FEW, keep_activations=True))


def test_a_finished_run_is_planned_as_it_was() -> None:
    first = plan_with(FEW, keep_activations=True)
    again = plan_with(FEW, finished(), keep_activations=True)
    assert again.tasks == first.tasks


def test_an_added_strategy_is_pooled_from_kept_states() -> None:
    present = finished()
    plan = plan_with([*FEW, "A2_max", "L6_sentence"], present, keep_activations=True)
    todo = [task for task in plan.tasks.values() if not present.issuperset(task.outputs.values())]
    assert {task.kind for task in todo} == {"pooler.pool", "prober.probe"}
    pooling = tasks(plan, "pooler.pool")
    assert sorted(tuple(sorted(task.outputs)) for task in pooling) == sorted(
        [("A2_max/2", "L6_sentence/2"), ("A2_max/5", "L6_sentence/5")] * 2  # train and test
    )
    for task in pooling:
        assert present.issuperset(task.inputs.values())
        assert set(task.inputs) == {next(role for role in task.inputs if role.startswith("states/")), "annotations"}
    served = plan_with(["A2_max"], present)  # a run that keeps none itself, whose strategy asks for no annotations
    assert all("annotations" not in task.inputs for task in tasks(served, "pooler.pool"))
    assert tasks(served, "pooler.pool") and not any("states/2" in task.outputs for task in served.tasks.values())
    extracted = plan_with(["A2_max"]).vectors.concepts["contrast"]
    assert served.vectors.concepts["contrast"].vectors == extracted.vectors


def test_what_kept_states_lack_goes_to_the_extractor() -> None:
    assert not GRADIENT.served_by_kept_states and STRATEGIES.get("S1_attention").served_by_kept_states
    plan = plan_with([*FEW, "A2_max", GRADIENT.id], finished())
    assert all(not role.startswith(GRADIENT.id) for task in tasks(plan, "pooler.pool") for role in task.outputs)
    assert any(f"{GRADIENT.id}/2" in task.outputs for task in tasks(plan, "extractor.extract"))


def test_a_layer_without_states_is_extracted() -> None:
    present = finished()
    plan = plan_with([*FEW, "A2_max"], present, layers=[2, 4])
    assert {role for task in tasks(plan, "pooler.pool") for role in task.outputs} == {"A2_max/2"}
    (train, test) = tasks(plan, "extractor.extract")
    assert {"A2_max/4", "A1_mean/4", "A1_mean/2"} <= set(train.outputs) == set(test.outputs)


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (plan_of, set),
        (lambda: supervised_plan(["P1_last_token"]), set),  # null directions have vectors of their own
        (lambda: plan_with([*FEW, "A2_max"], finished(), keep_activations=True), finished),
    ],
    ids=("demo", "another strategy", "kept states"),
)
def test_each_key_is_made_once_and_before_it_is_read(make: Callable[[], Plan], kept: Callable[[], set[str]]) -> None:
    plan = make()
    made = set(plan.local) | kept()
    for task in plan.tasks.values():
        assert made.issuperset(task.inputs.values()), task.kind
        made.update(task.outputs.values())
    keys = [key for task in plan.tasks.values() for key in task.outputs.values()]
    assert len(keys) == len(set(keys))


def test_a_strategy_that_reads_states_has_them_kept() -> None:
    plan = plan_with([*FEW, "X1_learned_query"])
    for task in tasks(plan, "extractor.extract"):
        assert set(task.outputs) == {f"{name}/{layer}" for name in (*FEW, "states") for layer in (2, 5)}
        assert task.params["keep_activations"] and [item["id"] for item in task.params["strategies"]] == list(FEW)
    kept = keys(plan_with(FEW, keep_activations=True))
    for task in tasks(plan, "prober.probe"):
        states = {key for role, key in task.inputs.items() if "/X1_learned_query/" in role}
        assert len(states) == 2 and states <= kept
    first = [key for task in tasks(plan_with(FEW), "prober.probe") for key in task.outputs.values()]
    assert set(first) < keys(plan)  # the cells of the other strategies stay what they were
    again = plan_with([*FEW, "X1_learned_query"], finished())
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


def test_masked_seed_words_move_train_and_test_passages_alone(tmp_path: Path) -> None:
    settings = {"preset": "demo", "concepts": ["contrast"], "metrics": ["d1", "d2"]}
    plain = load_run_config(None, settings)
    masking = load_run_config(None, {**settings, "corpus": {"mask": "[MASK]"}})
    assert plain.hashed()["corpus"].keys() == {"source", "window", "seed"}
    contrast = CONCEPTS.get("contrast")
    steps = {split: [passages_step(config, contrast, split) for config in (plain, masking)] for split in SPLITS}
    assert [first.key == second.key for first, second in steps.values()] == [False, False, True]
    before, after = (step.build()["text"].to_pylist() for step in steps["train"])
    words = re.compile(r"\b(however|although|despite|nevertheless|whereas)\b", re.IGNORECASE)
    assert any(map(words.search, before)) and not any(map(words.search, after))
    assert [words.sub("[MASK]", text) for text in before] == after
    assert dataset_revision(run_dataset(masking, [contrast])).endswith("seed words [MASK]")
    with pytest.raises(ConfigError, match=r"no seed words of academic_tone are known; those with some: causation"):
        require_seed_words(masking, [contrast, CONCEPTS.get("academic_tone")])
