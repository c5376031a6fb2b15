"""The limit of a found vector: which openings it is read on, what is sent, and the card."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from driver.tests import vector_cards
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.contracts.tables import FLUENCY, SCORES, TEXTS, table_from_rows
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import ConfigError
from poolbench.statistics.response import split_openings
from poolbench.steps.steerer import DIRECTIONS, GENERATE, PROMPTS
from poolbench_driver.find.damage import DamageTask
from poolbench_driver.find.limit import STEERED, limit_of, openings_of, plan_limit
from poolbench_driver.find.settings import FindSettings
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft
from poolbench_driver.statistics.limits import HarmLevels
from poolbench_driver.vectors.card import Limit, Source, Strength, VectorCard
from poolbench_driver.vectors.words import facts_of

from .test_baselines import plan_of

LEVELS = FindSettings(concept="contrast").harm_levels


@pytest.fixture
def plan() -> ConceptsPlan:
    return plan_of(("budget.num_train=40", "budget.num_test=16", "budget.num_openings=12"))


@pytest.fixture
def task(plan: ConceptsPlan) -> DamageTask:
    source = Source(tool="test", artifact="prober.probe.1")
    return DamageTask(plan, "run", vector_cards.vector_of(3, source=source), "C1", 0.2)


@pytest.fixture
def ids(plan: ConceptsPlan) -> list[str]:
    return openings_of(plan.scope.config)["prompt_id"].to_pylist()


def test_no_opening_of_the_choice_is_among_them(plan: ConceptsPlan, ids: list[str]) -> None:
    used = [f"neutral-54-{number:02d}" for number in range(12)]
    chose, read = split_openings(used, plan.scope.config.seed)
    assert len(chose) == len(read) == 6 and len(ids) == 54 - 6
    assert not set(chose) & set(ids) and set(read) < set(ids)


def test_they_are_steered_at_every_strength_and_not_at_all(task: DamageTask, ids: list[str]) -> None:
    draft = Draft()
    plan_limit(draft, task)
    unsteered, steered = (one for one in draft.work.tasks.values() if one.kind == GENERATE.kind)
    stored = draft.work.local[steered.inputs[PROMPTS()]].build()
    assert [row["prompt_id"] for row in stored.to_pylist()] == ids  # type: ignore[union-attr]
    assert unsteered.inputs[PROMPTS()] == steered.inputs[PROMPTS()]
    assert tuple(steered.params["strengths"]) == task.plan.scope.config.budget.strengths
    assert steered.inputs[DIRECTIONS(STEERED)] == "prober.probe.1" and unsteered.params["strengths"] == [0.0]


def commit(bench: Bench, task: DamageTask, ids: list[str], rise: Callable[[str, float], float], nll: float) -> None:
    """Commit texts whose scores rise from .5 as `rise` of opening and strength says, and their likelihoods."""
    draft = Draft()
    strengths = {UNSTEERED: (0.0,), STEERED: task.plan.scope.config.budget.strengths}
    for name, (texts, scores, fluency) in plan_limit(draft, task).items():
        rows = [
            {
                "text_id": f"{name}/{strength}/{prompt_id}", "direction_key": name, "prompt_id": prompt_id,
                "strength": strength, "num_tokens": 40, "repeated_4grams": 0.0, "scorer": "contrast",
                "score": 0.5 + rise(prompt_id, strength), "mean_nll": 2 + nll * strength,
            }
            for prompt_id in ids
            for strength in strengths[name]
        ]  # fmt: skip
        bench.artifacts.write_table(texts, table_from_rows(rows, TEXTS))
        for key, schema in ((scores, SCORES), (fluency, FLUENCY)):
            columns = [{column: row.get(column) for column in schema.names} for row in rows]
            bench.artifacts.write_table(key, table_from_rows(columns, schema))


@pytest.mark.parametrize(
    ("num_wrong", "nll", "limit", "reason"),
    [
        (0, 0.1, 0.3, "no larger strength was tested"),
        (20, 0.1, 0.2, "at strength 0.3, up to 55% of openings may move the wrong way (level 20%)"),
        (0, 1.6, 0.2, "at strength 0.3, the perplexity ratio may be 1.62 (level 1.5)"),
        (0, 6.0, None, "at strength 0.1, the perplexity ratio may be 1.82 (level 1.5)"),
    ],
)
def test_the_limit_is_read_from_scores_and_likelihoods(
    tmp_path: Path, task: DamageTask, ids: list[str], num_wrong: int, nll: float, limit: float | None, reason: str
) -> None:
    bench, notes, wrong = Bench(tmp_path), Notes(), ids[:num_wrong]
    commit(bench, task, ids, lambda name, at: -0.4 if at == 0.3 and name in wrong else at / 2, nll)
    found = limit_of(task, LEVELS, job_of(bench, task.plan).session, notes)
    assert not notes.finished and not notes.failures
    assert (found.strength, found.openings) == (limit, 48) and reason in found.reason
    assert {name: getattr(found, name) for name in asdict(LEVELS)} == asdict(LEVELS)
    if num_wrong:
        assert [test.wrong_way for test in found.tests] == [0, 0, num_wrong / 48]
    assert found.tests[0].perplexity_ratio == pytest.approx(math.exp(nll * 0.1))


def card_with(limit: Limit | None, recommended: float = 0.6) -> VectorCard:
    return vector_cards.vector_of(3, strength=Strength(recommended=recommended), limit=limit).card


def test_a_card_says_its_limit_and_that_the_recommended_strength_is_above_it() -> None:
    limit = Limit(**asdict(LEVELS), strength=0.35, openings=44, reason="at strength 0.5, it breaks")
    card = card_with(limit)
    assert VectorCard.parse(card.model_dump_json()) == card
    said = dict(facts_of(card))["limit"]
    assert said.startswith("up to 0.35, under 20% of openings fall by more than 0.1")
    assert "the perplexity ratio is under 1.5, with 95% confidence (44 openings that chose nothing)" in said
    assert said.endswith("not higher: at strength 0.5, it breaks; the recommended strength is above it")
    assert "recommended" not in dict(facts_of(card_with(limit, 0.35)))["limit"]
    assert "limit" not in dict(facts_of(card_with(None)))
    reason = "is outside the limit of the card, 0 to 0.35: at strength 0.5, it breaks"
    assert card.warnings([0.2, 0.5, -0.1]) == [f"warning: strength 0.5, -0.1 {reason}"]
    assert card.warnings([0, 0.35]) == card_with(None).warnings([5.0]) == []
    unknown = Limit(**asdict(LEVELS), openings=4, reason="too few openings")
    assert unknown.outside([0.1]) == (
        "strength 0.1 is outside the limit of the card, which covers no strength: too few openings"
    )
    assert unknown.outside([0.0]) is None


def test_levels_are_options_of_the_search() -> None:
    settings = FindSettings(concept="contrast", limit_wrong_way=0.1, limit_alpha=0.01)
    assert settings.harm_levels == HarmLevels(0.1, 0.1, 1.5, 0.01)
    assert settings.steering(1, ["A1_mean"]) == FindSettings(concept="contrast").steering(1, ["A1_mean"])
    with pytest.raises((ValueError, ConfigError)):
        FindSettings(concept="contrast", limit_perplexity=0.9)
