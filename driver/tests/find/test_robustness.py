"""Whether the gain of a vector holds elsewhere: what is sent, and figures by hand from texts and scores."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests import vector_cards
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.contracts.measures import Measure, measures_table
from poolbench.contracts.tables import CALIBRATION, FLUENCY, SCORES, TEXTS, table_from_rows, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, ConfigError, CorpusError, InputError, RestrictedError
from poolbench.steps.extractor import CALIBRATION as NORMS
from poolbench.steps.steerer import DIRECTIONS, GENERATE, PROMPTS
from poolbench.texts import load_openings
from poolbench_driver.config import SteeringConfig
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.find.damage import DamageTask, UserTexts, benign_of
from poolbench_driver.find.page import _robustness
from poolbench_driver.find.robustness import (
    CONTEXTS,
    FRAMINGS,
    Gain,
    Robustness,
    plan_composition,
    plan_gain,
    variants_of,
    with_context,
)
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft, PlannedWork
from poolbench_driver.stages.steering import Scorers, plan_scorers
from poolbench_driver.vectors.card import Application, CardMeasure, Source, Strength, Vector

from .test_baselines import plan_of

CONCEPT, OTHER, LAYER, STRENGTH, NORM = "contrast", "causation", 3, 0.2, 10.0
PASSAGES = ["One two\nthree.", "Four five.", "Six seven eight."]


@pytest.fixture
def plan() -> ConceptsPlan:
    sizes = {"num_train": 40, "num_test": 16, "num_bootstrap": 300, "num_openings": 12}
    return plan_of(tuple(f"budget.{name}={size}" for name, size in sizes.items()))


@pytest.fixture
def vector_of(plan: ConceptsPlan) -> Callable[..., Vector]:
    """`vector_of(concept, seed, **fields of the card)`: a vector of the model at the layer."""

    def make(concept: str, seed: int, layers: tuple[int, ...] = (LAYER,), **fields: Any) -> Vector:
        of_card = {
            "name": f"demo+{concept}", "concept": concept, "model_revision": plan.scope.model.ref.revision,
            "apply": Application(residual_norms={LAYER: NORM}), "strength": Strength(recommended=0.3),
            "source": Source(tool="test", artifact="prober.probe.1"),
        }  # fmt: skip
        return vector_cards.vector_of(*layers, seed=seed, **of_card | fields)

    return make


@pytest.fixture
def task(plan: ConceptsPlan, vector_of: Callable[..., Vector]) -> DamageTask:
    return DamageTask(plan, "run", vector_of(CONCEPT, 0), "C1", STRENGTH)


@pytest.fixture
def openings() -> dict[str, str]:
    """The held-out half of the openings."""
    return {row["prompt_id"]: row["text"] for row in load_openings("neutral-54", 12).to_pylist()[4:]}


@pytest.fixture
def bench(tmp_path: Path, plan: ConceptsPlan) -> Bench:
    """A store with what the runs of a search leave there."""
    bench = Bench(tmp_path)
    assert plan.steering is not None
    norms = table_from_rows([{"layer": LAYER, "median_residual_norm": NORM, "num_tokens": 9}], CALIBRATION)
    bench.artifacts.write_table(plan.steering.unsteered.inputs[NORMS()], norms)
    step = passages_step(plan.scope.config, plan.scope.concepts[0], "test")
    bench.artifacts.write_table(step.key, step.build())  # type: ignore[arg-type]
    bench.artifacts.write_table(plan.steering.scorers.concepts[CONCEPT].gate, PASSED)
    return bench


PASSED = measures_table(
    [Measure.of("scorer.gate", 1.0), Measure.of("scorer.positive_mean", 0.9), Measure.of("scorer.negative_mean", 0.1)]
)


def test_context_is_the_end_of_the_passages_and_another_one_for_each_opening() -> None:
    openings = {"a": "The ship", "b": "The cook"}
    assert with_context(openings, PASSAGES, 0) == list(openings.items())
    assert with_context(openings, PASSAGES, 4) == [
        ("a", "five.\n\nSix seven eight.\n\nThe ship"),
        ("b", "eight.\n\nOne two\nthree.\n\nThe cook"),
    ]
    assert with_context(openings, PASSAGES, 8)[0][1].startswith("One two\nthree.\n\nFour")
    assert with_context(openings, PASSAGES, 9) == with_context(openings, [], 1) == []
    short, longer = (with_context(openings, PASSAGES, number) for number in (3, 6))
    assert all(long.endswith(text) for (_, text), (_, long) in zip(short, longer, strict=True))


def test_each_form_ends_with_the_opening() -> None:
    text = "The {ship} lay in the Bay"
    for name, form in FRAMINGS.items():
        assert form(text).lower().endswith(text.lower()) and (form(text) == text) is (name == "plain")


def test_variants_differ_from_the_run_in_one_thing(openings: dict[str, str]) -> None:
    words = ["word " * 300]
    steering = SteeringConfig(temperature=0.7, num_samples=2)
    paraphrases = [("neutral-54-04", "Along the river ran the road"), ("neutral-54-00", "of another half")]
    variants = {name: rest for name, *rest in variants_of(openings, paraphrases, words, steering)}
    assert list(variants) == [
        *(f"context_{number}_words" for number in CONTEXTS), *(f"framing_{name}" for name in FRAMINGS),
        "framing_paraphrases", "temperature_0", "temperature_0.7", "temperature_1",
    ]  # fmt: skip
    plain = [list(openings.items()), {}]
    assert variants["context_0_words"] == variants["framing_plain"] == variants["temperature_0.7"] == plain
    assert variants["context_1024_words"] == [[], {}]
    assert variants["framing_paraphrases"] == [paraphrases[:1], {}]
    assert variants["temperature_0"][1] == {"temperature": 0.0, "num_samples": 1}
    assert variants["temperature_1"][1] == {"temperature": 1.0, "num_samples": 2}
    names = [name for name, *_ in variants_of(openings, [], words, steering)]
    assert "framing_paraphrases" not in names


def tasks_of(draft: Draft) -> list[Task]:
    return [task for task in draft.work.tasks.values() if task.kind == GENERATE.kind]


def test_unsteered_and_steered_texts_get_the_same_prompts(task: DamageTask) -> None:
    draft = Draft()
    plan_gain(draft, task, [("p", "The ship"), ("p", "A ship")], {"temperature": 0.0, "num_samples": 1})
    unsteered, steered = tasks_of(draft)
    (stored,) = (draft.work.local[one.inputs[PROMPTS()]] for one in (unsteered,))
    assert stored.build().to_pylist() == [  # type: ignore[union-attr]
        {"prompt_id": "p", "text": "The ship"}, {"prompt_id": "p", "text": "A ship"},
    ]  # fmt: skip
    assert unsteered.inputs[PROMPTS()] == steered.inputs[PROMPTS()]
    assert unsteered.params["strengths"] == [0.0] and steered.params["strengths"] == [STRENGTH]
    assert steered.inputs[DIRECTIONS("steered")] == "prober.probe.1" and steered.params["direction_ids"] == ["C1"]
    assert {one.params.get("temperature", 0.0) for one in (unsteered, steered)} == {0.0}
    config = task.plan.scope.config
    assert config.steering.temperature == 0.7 and steered.params["layer"] == LAYER
    again = Draft()
    plan_gain(again, task, [("p", "The ship"), ("p", "A ship")], {"temperature": 0.0, "num_samples": 1})
    assert again.work.tasks.keys() == draft.work.tasks.keys()


def test_two_vectors_are_one_direction_of_their_sum(task: DamageTask, vector_of: Callable[..., Vector]) -> None:
    draft, other = Draft(), vector_of(OTHER, 1)
    assert task.plan.steering is not None
    gains = plan_composition(draft, task, other, [("p", "The ship")], task.plan.steering.scorers)
    both, alone = tasks_of(draft)
    sums = {"both": 2.0 * task.vector.vectors[LAYER] + 3.0 * other.vectors[LAYER], "alone": 3.0 * other.vectors[LAYER]}
    for planned, added in zip((both, alone), sums.values(), strict=True):
        table = draft.work.local[planned.inputs[DIRECTIONS("steered")]].build()
        (strength,) = planned.params["strengths"]
        np.testing.assert_allclose(strength * vector_matrix(table["vector"])[0], added, rtol=1e-5)  # type: ignore[index]
        assert planned.params["alpha_unit"] == "absolute" and NORMS() not in planned.inputs
        assert np.linalg.norm(vector_matrix(table["vector"])[0]) == pytest.approx(1, abs=1e-6)  # type: ignore[index]
    names = ["", ".alone", ".other", ".other_alone"]
    assert list(gains) == [f"composition.demo+{OTHER}{name}" for name in names]
    assert [gain[2] for gain in gains.values()] == [CONCEPT, CONCEPT, OTHER, OTHER]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"layers": (2,)}, "not_implemented", "layers differ: 'demo\\+causation' is of layer 2, .* here 3"),
        ({"layers": (2, 3)}, "not_implemented", "layer 2, 3"),
        ({"strength": Strength()}, "failed", "has no strength"),
        ({"apply": Application()}, "failed", "not the unit"),
    ],
)
def test_vectors_that_do_not_add_up_are_nulls(
    task: DamageTask, vector_of: Callable[..., Vector], fields: Mapping[str, Any], status: str, reason: str
) -> None:
    assert task.plan.steering is not None
    draft, other = Draft(), vector_of(OTHER, 1, **fields)
    gains = plan_composition(draft, task, other, [("p", "The ship")], task.plan.steering.scorers)
    assert len(gains) == 4 and not draft.work.tasks
    for gain in gains.values():
        with pytest.raises(CellError, match=reason) as caught:
            raise gain  # type: ignore[misc]
        assert caught.value.status == status
    opposite = replace(task.vector, vectors={LAYER: -task.vector.vectors[LAYER]})
    opposite = replace(opposite, card=opposite.card.model_copy(update={"strength": Strength(recommended=STRENGTH)}))
    cancelled = plan_composition(draft, task, opposite, [("p", "The ship")], task.plan.steering.scorers)
    assert {str(gain) for gain in cancelled.values()} == {"the two vectors cancel each other"}


#: Mean score of steered texts; of unsteered ones it is .1, and .2 behind 64 words.
MEANS = {
    "context_0_words": 0.6, "context_64_words": 0.5, "context_256_words": 0.3, "framing_labelled": 0.45,
    "framing_requested": 0.35, "framing_quoted": 0.6, "framing_lower_case": 0.65, "framing_paraphrases": 0.9,
    "temperature_0": 0.2, "temperature_1": 0.55,
}  # fmt: skip
SPREAD = np.linspace(-0.05, 0.05, 8)


def fill(bench: Bench, draft: Draft, gain: Gain, prompts: list[tuple[str, str]], means: tuple[float, float]) -> None:
    """Commit what the tasks of a draft make: texts, their likelihoods, and scores that differ by opening."""
    offsets = dict(zip(sorted({name for name, _ in prompts}), SPREAD, strict=False))
    for keys, mean, sign in zip(gain[:2], means, (1, 0), strict=True):
        rows = [{"text_id": f"{keys.texts}/{n}", "prompt_id": name} for n, (name, _) in enumerate(prompts)]
        scores = [{**row, "scorer": gain[2], "score": mean + sign * offsets[row["prompt_id"]]} for row in rows]
        write(bench, keys.texts, table_from_rows(rows, TEXTS))
        write(bench, keys.scores, table_from_rows([{n: row[n] for n in SCORES.names} for row in scores], SCORES))
    for task in draft.work.tasks.values():
        for key in task.outputs.values():
            write(bench, key, table_from_rows([], FLUENCY))


def write(bench: Bench, key: str, table: Any) -> None:
    if not any(at == key for at, _ in bench.artifacts.objects()):
        bench.artifacts.write_table(key, table)


def paraphrased(folder: Path) -> Path:
    """Two paraphrases of one held-out opening, one of three others, and one of an opening of the choice."""
    rows = [{"prompt_id": f"neutral-54-0{n}", "text": f"In other words, {n}"} for n in (4, 5, 6, 0)]
    rows += [{"opening": load_openings("neutral-54", 12)["text"][7].as_py(), "text": "Other words"}]
    rows += [{"prompt_id": "neutral-54-04", "text": "A third form"}] * 2
    (folder / "paraphrases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "paraphrases.jsonl"


def test_gains_are_those_by_hand_and_nothing_is_sent_again(
    bench: Bench, task: DamageTask, openings: dict[str, str], vector_of: Callable[..., Vector], tmp_path: Path
) -> None:
    plan, session = task.plan, job_of(bench, task.plan).session
    other, lonely = vector_of(OTHER, 1), vector_of("private_words", 2)
    for vector in (other, lonely):
        vector.save(tmp_path / vector.card.name)
    robustness = Robustness(paraphrased(tmp_path), [tmp_path / one.card.name for one in (other, lonely)])
    passages = benign_of(plan, UserTexts(), session)["text"].to_pylist()
    prompts_of = robustness.paraphrased(plan.scope)
    assert len(prompts_of) == 6  # of seven rows, two are the same
    for name, prompts, changes in variants_of(openings, prompts_of, passages, plan.scope.config.steering):
        if name in MEANS:
            draft = Draft()
            gain = plan_gain(draft, task, prompts, changes)  # type: ignore[arg-type]
            base = 0.2 if name == "context_64_words" else 0.1
            fill(bench, draft, gain, prompts, (MEANS[name], base))  # type: ignore[arg-type]
    assert plan.steering is not None
    scope_of_other = replace(plan.scope, config=plan.scope.config.model_copy(update={"concepts": (OTHER,)}))
    keys = plan_scorers(scope_of_other).concepts[OTHER]
    write(bench, keys.scorer, PASSED)
    write(bench, keys.gate, PASSED)
    fill_compositions(bench, task, [other, lonely], openings)

    notes = Notes()
    figures = {m.name: m for m in robustness.measures(task, openings, UserTexts(), session, notes)}
    assert not notes.finished and not notes.failures and notes.reused
    for name, mean in MEANS.items():
        measure = figures[f"robustness.{name}"]
        base = 0.2 if name == "context_64_words" else 0.1
        offset = SPREAD[:4].mean() if name == "framing_paraphrases" else 0.0
        if name == "framing_paraphrases":  # the mean over openings, whose first one has two
            assert measure.n == 4
        assert measure.value == pytest.approx(mean + offset - base, abs=1e-6), name
    plain = figures["robustness.context_0_words"]
    half = 2.365 * SPREAD.std(ddof=1) / np.sqrt(8)  # Student's interval of the mean
    assert [plain.ci_low, plain.ci_high] == pytest.approx([0.5 - half, 0.5 + half], abs=0.01) and plain.n == 8
    for same in ("framing_plain", "temperature_0.7"):
        assert figures[f"robustness.{same}"] == plain.model_copy(update={"name": f"robustness.{same}"})
    spread = figures["robustness.framing_spread"]  # without the paraphrases, which four openings have
    assert spread.value == pytest.approx(0.65 - 0.35) and spread.n == 5
    long = figures["robustness.context_1024_words"]
    assert (long.value, long.status) == (None, "too_few") and "fewer words" in str(long.reason)
    of_other = f"robustness.composition.demo+{OTHER}"
    values = [figures[f"{of_other}{name}"].value for name in ("", ".alone", ".other", ".other_alone")]
    assert values == pytest.approx([0.6, 0.05, 0.4, 0.45], abs=1e-6)
    of_lonely = "robustness.composition.demo+private_words"
    assert figures[of_lonely].value == pytest.approx(0.6, abs=1e-6)
    unknown = figures[f"{of_lonely}.other"]
    assert (unknown.value, unknown.status) == (None, "no_scorer") and "not registered here" in str(unknown.reason)


def fill_compositions(bench: Bench, task: DamageTask, others: list[Vector], openings: dict[str, str]) -> None:
    """Commit texts along both vectors and the other alone, with scores of both concepts."""
    assert task.plan.steering is not None
    mean_by = {("both", CONCEPT): 0.7, ("alone", CONCEPT): 0.15, ("both", OTHER): 0.6, ("alone", OTHER): 0.65}
    mean_by |= {(UNSTEERED, CONCEPT): 0.1, (UNSTEERED, OTHER): 0.2}
    scope = replace(task.plan.scope, config=task.plan.scope.config.model_copy(update={"concepts": (OTHER,)}))
    all_scorers = {**plan_scorers(scope).concepts, **task.plan.steering.scorers.concepts}
    for other in others:
        draft = Draft()
        gains = plan_composition(draft, task, other, list(openings.items()), Scorers(PlannedWork(), all_scorers))
        both, alone, *_ = gains.values()
        assert not isinstance(both, CellError) and not isinstance(alone, CellError)
        for label, keys in {"both": both[0], "alone": alone[0], UNSTEERED: both[1]}.items():
            rows = [{"text_id": f"{keys.texts}/{name}", "prompt_id": name} for name in openings]
            scores = [
                {"text_id": row["text_id"], "scorer": scorer, "score": mean_by[label, scorer]}
                for row in rows
                for scorer in (CONCEPT, OTHER)
            ]
            write(bench, keys.texts, table_from_rows(rows, TEXTS))
            write(bench, keys.scores, table_from_rows(scores, SCORES))
        for planned in draft.work.tasks.values():
            for key in planned.outputs.values():
                write(bench, key, table_from_rows([], FLUENCY))


@pytest.mark.parametrize(
    ("content", "message", "error"),
    [
        ('{"prompt_id": "neutral-54-99", "text": "a"}\n', "line 1: no opening .* is 'neutral-54-99", InputError),
        ('{"text": "a"}\n', "line 1: no opening of this search is ''", InputError),
        ('{"prompt_id": "neutral-54-20", "text": "a"}\n', "ids are neutral-54-00 to neutral-54-11", InputError),
        ('{"prompt_id": "neutral-54-00"}\n', "line 1: no 'text'", CorpusError),
        ('{"prompt_id": "neutral-54-00", "text": " "}\n', "line 1: the text is empty", InputError),
        ('{"prompt_id": "neutral-54-00", "text": "\\ud800"}\n', "no valid Unicode", InputError),
    ],
)  # fmt: skip
def test_a_wrong_paraphrase_is_refused_with_its_line(
    plan: ConceptsPlan, tmp_path: Path, content: str, message: str, error: type[Exception]
) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    with pytest.raises(error, match=message):
        Robustness(tmp_path / "p.jsonl").require_fit(plan.scope)


def test_vectors_that_do_not_fit_are_refused(
    plan: ConceptsPlan, vector_of: Callable[..., Vector], tmp_path: Path
) -> None:
    def saved(name: str, vector: Vector) -> Path:
        vector.save(tmp_path / name)
        return tmp_path / name

    def refused(*folders: Path) -> str:
        with pytest.raises((InputError, ConfigError, RestrictedError)) as caught:
            Robustness(others=folders).require_fit(plan.scope)
        return str(caught.value)

    other_model = refused(saved("a", vector_of(OTHER, 1, model_revision="0" * 40, model="another")))
    assert "the vector is of another at revision" in other_model and "--with takes vectors of" in other_model
    assert "the vector has width 4" in refused(saved("b", vector_of(OTHER, 1, width=4)))
    assert str(tmp_path / "none") in refused(tmp_path / "none")
    twice = refused(*(saved(name, vector_of(OTHER, seed)) for seed, name in enumerate(("c", "d"))))
    assert "at most 4 vectors of different names" in twice
    five = [saved(f"e{n}", vector_of(OTHER, n, name=f"demo+{n}")) for n in range(5)]
    assert "not 5" in refused(*five)
    assert len(Robustness(others=five[:4]).vectors(plan.scope)) == 4
    assert "sensitive" in refused(saved("f", vector_of("toxicity", 3)))


def test_measures_of_robustness_are_a_part_of_the_page() -> None:
    measures = (
        CardMeasure(name="find.gain", value=0.5),
        CardMeasure(name="robustness.context_64_words", value=0.25, ci_low=0.1, ci_high=0.4, n=8),
        CardMeasure(name="robustness.context_1024_words", status="failed", reason="prompt 0 exceeds the window"),
    )
    card = vector_cards.vector_of(1).card
    (part,) = _robustness(card.model_copy(update={"measures": measures}))
    lines = [[cell.text for cell in line.cells] for line in part.blocks[0].lines]  # type: ignore[union-attr]
    assert lines == [
        ["context_64_words", "0.25", "0.1 to 0.4", "8", ""],
        ["context_1024_words", "", "", "", "failed: prompt 0 exceeds the window"],
    ]
    assert not list(_robustness(card))
