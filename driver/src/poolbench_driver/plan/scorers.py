"""Plans the scorers: training, gate, and the scores of steered texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poolbench.concepts import Concept
from poolbench.config import RunConfig, folder_revision
from poolbench.contracts.tasks import Task, step_key
from poolbench_driver.plan.plan import NULLS, UNSTEERED, Plan, ScorerPlan, scorers_of
from poolbench_driver.plan.steering import strategy_batches


def plan_scorer(plan: Plan, concept: Concept) -> None:
    """Trains a concept's scorer and puts it through the gate."""
    config = plan.config
    test = plan.add_passages(concept, "test")
    params = {
        "concept": concept.id,
        "base": _base(config),
        "mode": config.scorer_mode,
        "seed": config.seed,
        **_published(config, concept),
    }
    inputs = {"passages/scorer": plan.add_passages(concept, "scorer")}
    keys = {part: step_key("scorer.train", {**params, "part": part}, inputs) for part in ("scorer", "measures")}
    plan.add(Task(kind="scorer.train", inputs=inputs, outputs=keys, params=params))
    continuations = _plan_continuations(plan, test)
    gate_inputs = {"scorer": keys["scorer"], "passages/test": test, "continuations": continuations}
    gate_params = {"num_tokens": config.budget.max_tokens, "seed": config.seed}
    gate = plan.add_step("scorer.gate", "measures", gate_inputs, gate_params)
    plan.scorers[concept.id] = ScorerPlan(keys["scorer"], keys["measures"], continuations, gate)


def _base(config: RunConfig) -> str:
    """The base's name; a folder by its whole path, because the service runs elsewhere."""
    folder = Path(config.scorer_base).expanduser()
    return str(folder.resolve()) if folder.is_dir() else config.scorer_base


def _published(config: RunConfig, concept: Concept) -> dict[str, Any]:
    """What else names a base: its revision, and the place of a published classifier.

    A folder is named by what it holds, so that other weights in it are other scorers.
    """
    imports = config.scorer_mode == "import"
    subfolder = config.scorer_subfolder.replace("{concept}", concept.id) if imports else ""
    folder = Path(_base(config)) / subfolder
    revision = folder_revision(folder) if folder.is_dir() else config.scorer_revision
    named = {} if revision is None else {"revision": revision}
    return {**named, "subfolder": subfolder, "positive_label": config.scorer_positive_label} if imports else named


def _plan_continuations(plan: Plan, passages: str) -> str:
    """The model's own continuations of passage halves, for part (b) of the gate."""
    budget = plan.config.budget
    params = {**plan.model.params, "num_passages": budget.num_continuations, "max_tokens": budget.max_tokens}
    return plan.add_step("steerer.continue", "texts", {"passages": passages}, params)


def plan_scores(plan: Plan) -> None:
    """Scores of all steered texts by each concept's scorers, and of the unsteered ones by all."""
    texts, fluency, _ = plan.unsteered
    scored = _plan_scores_of(plan, list(plan.scorers), {UNSTEERED: texts})
    plan.unsteered = (texts, fluency, scored[UNSTEERED])
    for cells in plan.concepts.values():
        scorers = scorers_of(plan, cells.concept)
        for names in [[NULLS], *strategy_batches(plan)]:
            cells.scores |= _plan_scores_of(plan, scorers, {name: cells.texts[name] for name in names})


def _plan_scores_of(plan: Plan, scorers: Sequence[str], texts: dict[str, str]) -> dict[str, str]:
    given = {f"scorer/{name}": plan.scorers[name].scorer for name in scorers}
    keys = {name: step_key("scorer.score", {}, {**given, "texts": key}) for name, key in texts.items()}
    inputs = {**given, **{f"texts/{name}": key for name, key in texts.items()}}
    plan.add(Task(kind="scorer.score", inputs=inputs, outputs={f"scores/{name}": key for name, key in keys.items()}))
    return keys
