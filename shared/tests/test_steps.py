"""Typed steps: roles, keys, parameters, and the defaults that a version stands for."""

import json
from pathlib import Path

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from poolbench.contracts.keys import derive_key, digest
from poolbench.errors import ConfigError
from poolbench.steps import SERVICE_STEPS, STEPS, UnknownStepError, get_step, label_of
from poolbench.steps import prober as p
from poolbench.steps import steerer as s
from poolbench.steps.extractor import EXTRACT, STATES, VECTORS, ExtractParams
from poolbench.steps.pooler import ANNOTATE, POOL, AnnotateParams
from poolbench.steps.roles import Cell, Named, Role, SplitCell
from poolbench.steps.scorer import SCORE, TRAIN, ScoreParams, TrainParams

#: Version and digest of the default parameters of each step.
DEFAULTS = Path(__file__).parent / "data" / "step_defaults.json"
NAMES = st.text(st.characters(blacklist_characters="/\n\r", blacklist_categories=("Cs",)), min_size=1, max_size=20)


def fingerprint(kind: str) -> dict[str, object]:
    """Version of a step, and digest of what its parameters are where they are not set."""
    properties = STEPS[kind].params.model_json_schema().get("properties", {})
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    return {"version": STEPS[kind].version, "defaults": digest(defaults, 16)}


@pytest.mark.parametrize("kind", STEPS)
def test_a_changed_default_needs_a_raised_version(kind: str) -> None:
    """Defaults enter no key: artifacts of the old default would pass for the new one.

    After raising the version, write the new line: `python shared/tests/test_steps.py`.
    """
    recorded = json.loads(DEFAULTS.read_text("utf-8"))[kind]
    now = fingerprint(kind)
    if recorded["version"] == now["version"]:
        assert recorded["defaults"] == now["defaults"], f"a default of {kind} changed; raise the version of the step"
    assert recorded == now, f"the version of {kind} was raised; record it by `python {Path(__file__).name}`"


def test_every_step_of_a_service_says_how_it_is_shown_and_what_its_work_is_counted_in() -> None:
    labels = [step.label for step in SERVICE_STEPS.values()]
    assert all(labels) and len(set(labels)) == len(labels)
    assert all(bool(step.unit) == (step.work is not None) for step in STEPS.values())
    assert (label_of("prober.probe"), label_of("third.party")) == ("probe (D1)", "third.party")


@for_all(NAMES, st.integers(0, 999_999), st.sampled_from(["train", "test"]))
def test_roles_are_read_as_they_are_written(name: str, layer: int, split: str) -> None:
    assert p.VECTORS.parse(p.VECTORS(split, name, layer)) == SplitCell(split, name, layer)
    assert p.MEASURES.parse(f"measures/{name}/{layer}") == Cell(name, layer)
    assert s.TEXTS.parse(s.TEXTS(f"{name}/{layer}")) == Named(f"{name}/{layer}")


@pytest.mark.parametrize(
    "role", ["validation/A1/3", "train/A1", "train/A1/x", "train/A1/--1", "xtrain/A1/3", "train//3"]
)
def test_another_role_is_none_of_the_family(role: str) -> None:
    assert p.VECTORS.parse(role) is None


def test_roles_of_one_family_are_found_in_order() -> None:
    roles = ["train/B/2", "train/A/10", "test/A/2", "passages/train"]
    assert [role for role, _ in p.VECTORS.among(roles)] == ["test/A/2", "train/A/10", "train/B/2"]
    assert str(STATES) == "states/<layer>" and isinstance(STATES, Role)


def test_keys_are_the_derivation_of_what_was_set_and_of_the_embeddings_version() -> None:
    params = AnnotateParams(pipeline="annotator", pipeline_version=None)
    inputs = {"passages": "corpus.passages.a", "idf_passages": "corpus.passages.b"}
    expected = derive_key("pooler.annotate", 1, {"pipeline": "annotator", "pipeline_version": None}, inputs)
    assert ANNOTATE.key("annotations", params, inputs) == expected
    assert ANNOTATE.key("annotations", AnnotateParams(), inputs) == derive_key("pooler.annotate", 1, {}, inputs)
    params = ExtractParams.model_validate({"model": "demo", "strategies": [{"id": "A1_mean"}], "layers": [-1, 2]})
    inputs = {"passages": "corpus.passages.a"}
    for layer, more in ((2, {}), (-1, {"embedding": 2})):
        expected = {"model": "demo", "layer": layer, **more}
        assert EXTRACT.key(STATES(layer), params, inputs) == derive_key("extractor.states", 4, expected, inputs)


def test_an_output_depends_on_what_it_reads_alone() -> None:
    asked = [{"id": "A1_mean", "params": {}}, {"id": "L5_keyword", "params": {}}]
    params = ExtractParams.model_validate({"model": "demo", "strategies": asked, "layers": [1, 2]})
    fewer = ExtractParams.model_validate({"model": "demo", "strategies": asked[:1], "layers": [2]})
    before = {"passages": "corpus.passages.a", "annotations": "pooler.annotate.a"}
    after = {**before, "annotations": "pooler.annotate.b"}
    assert EXTRACT.key(VECTORS("A1_mean", 2), params, before) == EXTRACT.key(VECTORS("A1_mean", 2), fewer, after)
    role = VECTORS("L5_keyword", 2)
    assert EXTRACT.key(role, params, before) != EXTRACT.key(role, params, after)
    assert EXTRACT.key(STATES(2), params, before).startswith("extractor.states.")
    params = s.GenerateParams(model="demo", layer=2, max_tokens=5)
    shared = {"prompts": "corpus.prompts.a"}
    one = {**shared, "directions/a": "prober.probe.a"}
    both = {**one, "directions/b": "prober.probe.b"}
    assert s.GENERATE.key("texts/a", params, one) == s.GENERATE.key("texts/a", params, both)
    assert s.GENERATE.key("fluency/a", params, one) != s.GENERATE.key("texts/a", params, one)
    texts, scorers = {"texts/a": "steerer.generate.a"}, {"scorer/contrast": "scorer.train.a"}
    alone = SCORE.key("scores/a", ScoreParams(), {**texts, **scorers})
    assert alone == SCORE.key("scores/a", ScoreParams(batch_tokens=500), {**texts, **scorers, "texts/b": "x.b"})


def test_directions_depend_on_the_train_split_and_on_no_resamples() -> None:
    def keys(num_bootstrap: int, test: str) -> dict[str, str]:
        params = p.ProbeParams(concept="contrast", num_bootstrap=num_bootstrap)
        inputs = {"passages/train": "c.a", "passages/test": test, "train/A1_mean/2": "e.a", "test/A1_mean/2": test}
        roles = [role("A1_mean", 2) for role in p.PARTS.values()]
        return dict(p.PROBE.task(params, inputs, roles).outputs)

    first, second = keys(10, "c.b"), keys(20, "c.z")
    assert first["directions/A1_mean/2"] == second["directions/A1_mean/2"]
    assert first["measures/A1_mean/2"] != second["measures/A1_mean/2"]
    assert keys(10, "c.b")["scores/A1_mean/2"] == keys(20, "c.b")["scores/A1_mean/2"]


def test_wrong_parameters_and_roles_are_named_with_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"parameters of scorer.train: epochz: .*; known parameters: concept, base"):
        TRAIN.parse({"concept": "contrast", "epochz": 3})
    task = TRAIN.task(TrainParams(concept="contrast"), {"passages/scorer": "corpus.passages.a"}, ["scorer", "measures"])
    assert TRAIN.params_of(task) == TrainParams(concept="contrast") and task.params == {"concept": "contrast"}
    wrong = task.model_copy(update={"inputs": {"passages/train": "corpus.passages.a"}})
    with pytest.raises(ConfigError, match=r"has no input role 'passages/train'; input roles: passages/scorer"):
        TRAIN.params_of(wrong)
    with pytest.raises(ConfigError, match=r"has no output role 'A1_mean'; output roles: <strategy>/<layer>"):
        POOL.params_of(task.model_copy(update={"inputs": {}, "outputs": {"A1_mean": "a.b"}}))
    with pytest.raises(UnknownStepError, match=r"prober\.probe"):
        get_step("prober.prob")


if __name__ == "__main__":
    DEFAULTS.parent.mkdir(exist_ok=True)
    DEFAULTS.write_text(json.dumps({kind: fingerprint(kind) for kind in STEPS}, indent=1) + "\n", "utf-8")
