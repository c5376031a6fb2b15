"""The plan: a pure function from configuration to tasks. Which of them are done, the object store says.

Every key is known before anything runs, because keys are derivations. So the plan is always the whole job;
a rerun sends what is not committed, and a changed setting moves only the keys that depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from poolbench.concepts import Concept, get_concept
from poolbench.config import RunConfig
from poolbench.contracts.tasks import Task, step_key
from poolbench.pooling.registry import StrategySpec, get_strategy
from poolbench_driver.corpora import LocalStep, calibration_step, openings_step, passages_step
from poolbench_driver.models import ModelInfo

#: Texts of this many strategies are generated and scored by one task: some seconds of work on one device.
STRATEGIES_PER_TASK = 4
NULL_BASE = "A1_mean"
UNSTEERED = "unsteered"
NULLS = "nulls"


@dataclass
class ConceptPlan:
    """Artifact keys of one concept, by what they hold."""

    concept: Concept
    passages: dict[str, str] = field(default_factory=dict)  # split -> key
    annotations: dict[str, str] = field(default_factory=dict)  # split -> key
    vectors: dict[tuple[str, str, int], str] = field(default_factory=dict)  # split, strategy, layer
    measures: dict[tuple[str, int], str] = field(default_factory=dict)  # strategy, layer
    directions: dict[tuple[str, int], str] = field(default_factory=dict)
    probe_scores: dict[tuple[str, int], str] = field(default_factory=dict)
    nulls: str = ""
    texts: dict[str, str] = field(default_factory=dict)  # strategy id or NULLS
    fluency: dict[str, str] = field(default_factory=dict)
    scores: dict[str, str] = field(default_factory=dict)


@dataclass
class ScorerPlan:
    """Artifact keys of one concept's scorer and its gate."""

    scorer: str
    training: str  # measures of the training
    continuations: str
    gate: str


@dataclass
class Plan:
    """The whole job: local steps first, then tasks in the order in which they should be sent."""

    config: RunConfig
    model: ModelInfo
    layers: list[int]
    steering_layer: int
    strategies: list[StrategySpec]
    local: dict[str, LocalStep] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    concepts: dict[str, ConceptPlan] = field(default_factory=dict)
    neighbours: dict[str, ConceptPlan] = field(default_factory=dict)  # not measured themselves
    scorers: dict[str, ScorerPlan] = field(default_factory=dict)
    annotator: dict[str, Any] = field(default_factory=dict)  # parameters of pooler.annotate
    calibration: str = ""
    openings: str = ""
    unsteered: tuple[str, str, str] = ("", "", "")  # texts, fluency, scores

    def add(self, task: Task) -> dict[str, str]:
        """Adds a task and returns its outputs."""
        self.tasks[task.task_id] = task
        return task.outputs

    @property
    def implemented(self) -> list[StrategySpec]:
        """The strategies that are computed; the others become rows that say so."""
        return [spec for spec in self.strategies if spec.implemented]

    @property
    def steers(self) -> bool:
        """Whether D2 or D3 is measured."""
        return bool({"d2", "d3"} & set(self.config.metrics))

    @property
    def pooled(self) -> list[StrategySpec]:
        """The strategies that vectors are made of: the ranked ones, and the one under the nulls."""
        base = [get_strategy(NULL_BASE)] if self.steers else []
        return [*self.implemented, *(spec for spec in base if spec not in self.implemented)]

    def layers_with_steering(self) -> list[int]:
        """The layers that vectors are needed at."""
        return sorted({*self.layers, self.steering_layer} if self.steers else self.layers)

    def producers(self) -> dict[str, Task]:
        """The task that produces each key."""
        return {key: task for task in self.tasks.values() for key in task.outputs.values()}


def make_plan(
    config: RunConfig,
    model: ModelInfo,
    strategies: Sequence[StrategySpec],
    annotator_version: str | None = None,
) -> Plan:
    """Plans a run.

    Args:
        config: What to measure.
        model: Revision, depth and width of the model.
        strategies: Registered strategies to rank, implemented or not.
        annotator_version: Version of the spaCy pipeline; another one makes other annotations.
    """
    layers, steering = model.layers(config.layers), model.layer(config.steering_layer)
    plan = Plan(config, model, layers, steering, list(strategies))
    plan.annotator = {"pipeline": config.annotator, "pipeline_version": annotator_version}
    concepts = [get_concept(name) for name in config.concepts]
    for concept in concepts:
        plan.concepts[concept.id] = cells = ConceptPlan(concept)
        _plan_vectors(plan, cells, ("train", "test"), plan.layers_with_steering())
        _plan_probes(plan, cells)
    if plan.steers:
        _plan_shared_steering(plan)
        for concept in _with_neighbours(plan, concepts):
            _plan_scorer(plan, concept)
        for concept in concepts:
            _plan_steering(plan, plan.concepts[concept.id])
        _plan_scores(plan)
        _plan_neighbour_vectors(plan)
    return plan


def scorers_of(plan: Plan, concept: Concept) -> list[str]:
    """The scorers that a concept's steered texts are given to: its own, and for D3 its neighbours'."""
    neighbours = concept.neighbours if "d3" in plan.config.metrics else ()
    return list(dict.fromkeys([concept.id, *neighbours]))


def _with_neighbours(plan: Plan, concepts: Iterable[Concept]) -> list[Concept]:
    ids = dict.fromkeys(name for concept in concepts for name in scorers_of(plan, concept))
    return [get_concept(name) for name in ids]


def _passages(plan: Plan, concept: Concept, split: str) -> str:
    step = passages_step(plan.config, concept, split)
    plan.local[step.key] = step
    return step.key


def _task(kind: str, inputs: dict[str, str], outputs: dict[str, str], params: dict[str, Any]) -> Task:
    return Task(kind=kind, inputs=inputs, outputs=outputs, params=params)


def _simple(plan: Plan, kind: str, role: str, inputs: dict[str, str], params: dict[str, Any]) -> str:
    """Adds a task with one output, whose key depends on all its parameters and inputs."""
    return plan.add(_task(kind, inputs, {role: step_key(kind, params, inputs)}, params))[role]


def _plan_vectors(plan: Plan, cells: ConceptPlan, splits: Sequence[str], layers: Sequence[int]) -> None:
    cells.passages["train"] = _passages(plan, cells.concept, "train")
    for split in splits:
        cells.passages[split] = _passages(plan, cells.concept, split)
        inputs = {"passages": cells.passages[split], "idf_passages": cells.passages["train"]}
        cells.annotations[split] = _simple(plan, "pooler.annotate", "annotations", inputs, plan.annotator)
        _plan_extraction(plan, cells, split, layers)


def _plan_neighbour_vectors(plan: Plan) -> None:
    """Train vectors of neighbours that are not measured themselves: D3_rep needs their directions."""
    for concept in _with_neighbours(plan, [cells.concept for cells in plan.concepts.values()]):
        if concept.id not in plan.concepts:
            plan.neighbours[concept.id] = cells = ConceptPlan(concept)
            _plan_vectors(plan, cells, ("train",), [plan.steering_layer])


def _plan_extraction(plan: Plan, cells: ConceptPlan, split: str, layers: Sequence[int]) -> None:
    inputs = {"passages": cells.passages[split], "annotations": cells.annotations[split]}
    base = {**plan.model.params, "include_bos": plan.config.include_bos}
    outputs: dict[str, str] = {}
    for spec in plan.pooled:
        # Annotations enter the keys of the strategies that read them, and no others: another spaCy pipeline
        # recomputes no more than it must.
        used = inputs if spec.reads_annotations else {"passages": inputs["passages"]}
        for layer in layers:
            key = step_key("extractor.extract", {**base, "strategy": spec.identity(), "layer": layer}, used)
            outputs[f"{spec.id}/{layer}"] = cells.vectors[split, spec.id, layer] = key
    if plan.config.keep_activations:
        for layer in layers:
            states = step_key("extractor.states", {**base, "layer": layer}, {"passages": inputs["passages"]})
            outputs[f"states/{layer}"] = states
    strategies = [{"id": spec.id, "params": spec.resolve()} for spec in plan.pooled]
    params = {
        **base,
        "strategies": strategies,
        "layers": list(layers),
        "keep_activations": plan.config.keep_activations,
    }
    plan.add(_task("extractor.extract", inputs, outputs, params))


def _plan_probes(plan: Plan, cells: ConceptPlan) -> None:
    config = plan.config
    params = {
        "concept": cells.concept.id,
        "seed": config.seed,
        "folds": 5,
        "num_bootstrap": config.budget.num_bootstrap,
    }
    passages = {f"passages/{split}": cells.passages[split] for split in ("train", "test")}
    for layer in plan.layers_with_steering():
        inputs, outputs = dict(passages), {}
        for spec in plan.implemented:
            vectors = {f"{s}/{spec.id}/{layer}": cells.vectors[s, spec.id, layer] for s in ("train", "test")}
            inputs |= vectors
            for part, store in (
                ("measures", cells.measures),
                ("directions", cells.directions),
                ("scores", cells.probe_scores),
            ):
                key = step_key("prober.probe", {**params, "part": part}, {**passages, **vectors})
                outputs[f"{part}/{spec.id}/{layer}"] = store[spec.id, layer] = key
        plan.add(_task("prober.probe", inputs, outputs, params))


def _plan_shared_steering(plan: Plan) -> None:
    """What all concepts share: the calibration norm, the openings and the unsteered texts."""
    config = plan.config
    calibration = calibration_step()
    openings = openings_step(config.budget.opening_set, config.budget.num_openings)
    plan.local |= {calibration.key: calibration, openings.key: openings}
    plan.openings = openings.key
    plan.calibration = _simple(
        plan,
        "extractor.calibrate",
        "calibration",
        {"passages": calibration.key},
        {**plan.model.params, "layers": [plan.steering_layer]},
    )
    texts, fluency = _generate(plan, {}, UNSTEERED, [0.0], None)
    plan.add(_generation(plan, {}, {UNSTEERED: (texts, fluency)}, [0.0], None))
    plan.unsteered = (texts, fluency, "")


def _generation_params(plan: Plan, strengths: Sequence[float], direction_ids: Sequence[str] | None) -> dict[str, Any]:
    return {
        **plan.model.params,
        "layer": plan.steering_layer,
        "strengths": list(strengths),
        "max_tokens": plan.config.budget.max_tokens,
        "alpha_unit": "residual_norm",
        "direction_ids": list(direction_ids) if direction_ids is not None else "all",
        "seed": plan.config.seed,
    }


def _generate(
    plan: Plan, directions: dict[str, str], name: str, strengths: Sequence[float], ids: Sequence[str] | None
) -> tuple[str, str]:
    """The keys of the texts and their fluency under one name."""
    inputs = {**directions, "prompts": plan.openings, "calibration": plan.calibration}
    params = _generation_params(plan, strengths, ids)
    return (
        step_key("steerer.generate", {**params, "part": "texts"}, inputs),
        step_key("steerer.generate", {**params, "part": "fluency"}, inputs),
    )


def _generation(
    plan: Plan,
    directions: dict[str, str],
    names: dict[str, tuple[str, str]],
    strengths: Sequence[float],
    ids: Sequence[str] | None,
) -> Task:
    inputs = {f"directions/{name}": key for name, key in directions.items()}
    inputs |= {"prompts": plan.openings, "calibration": plan.calibration}
    outputs = {f"texts/{name}": keys[0] for name, keys in names.items()}
    outputs |= {f"fluency/{name}": keys[1] for name, keys in names.items()}
    return _task("steerer.generate", inputs, outputs, _generation_params(plan, strengths, ids))


def _plan_steering(plan: Plan, cells: ConceptPlan) -> None:
    """Steered texts of every strategy and of the concept's null directions, at the steering layer."""
    budget, layer = plan.config.budget, plan.steering_layer
    cells.nulls = _simple(
        plan,
        "prober.nulls",
        "nulls",
        {
            "passages/train": cells.passages["train"],
            f"train/{NULL_BASE}/{layer}": cells.vectors["train", NULL_BASE, layer],
        },
        {"num_nulls": budget.num_nulls, "seed": plan.config.seed},
    )
    _plan_texts(plan, cells, {NULLS: cells.nulls}, budget.null_strengths, None)
    ids = [spec.id for spec in plan.implemented]
    for chunk in _chunks(ids, STRATEGIES_PER_TASK):
        directions = {name: cells.directions[name, layer] for name in chunk}
        _plan_texts(plan, cells, directions, budget.strengths, ["C1"])


def _plan_texts(
    plan: Plan,
    cells: ConceptPlan,
    directions: dict[str, str],
    strengths: Sequence[float],
    ids: Sequence[str] | None,
) -> None:
    names = {name: _generate(plan, {"directions": key}, name, strengths, ids) for name, key in directions.items()}
    plan.add(_generation(plan, directions, names, strengths, ids))
    for name, (texts, fluency) in names.items():
        cells.texts[name], cells.fluency[name] = texts, fluency


def _plan_scorer(plan: Plan, concept: Concept) -> None:
    """Trains a concept's scorer and puts it through the gate."""
    config = plan.config
    training = _passages(plan, concept, "scorer")
    test = _passages(plan, concept, "test")
    params = {"concept": concept.id, "base": config.scorer_base, "seed": config.seed}
    inputs = {"passages/scorer": training}
    keys = {part: step_key("scorer.train", {**params, "part": part}, inputs) for part in ("scorer", "measures")}
    plan.add(_task("scorer.train", inputs, keys, params))
    continuations = _simple(
        plan,
        "steerer.continue",
        "texts",
        {"passages": test},
        {
            **plan.model.params,
            "num_passages": config.budget.num_continuations,
            "max_tokens": config.budget.max_tokens,
        },
    )
    gate = _simple(
        plan,
        "scorer.gate",
        "measures",
        {"scorer": keys["scorer"], "passages/test": test, "continuations": continuations},
        {"num_tokens": config.budget.max_tokens, "seed": config.seed},
    )
    plan.scorers[concept.id] = ScorerPlan(keys["scorer"], keys["measures"], continuations, gate)


def _plan_scores(plan: Plan) -> None:
    texts, fluency, _ = plan.unsteered
    scored = _score(plan, list(plan.scorers), {UNSTEERED: texts})
    plan.unsteered = (texts, fluency, scored[UNSTEERED])
    for cells in plan.concepts.values():
        scorers = scorers_of(plan, cells.concept)
        cells.scores |= _score(plan, scorers, {NULLS: cells.texts[NULLS]})
        ids = [spec.id for spec in plan.implemented]
        for chunk in _chunks(ids, STRATEGIES_PER_TASK):
            cells.scores |= _score(plan, scorers, {name: cells.texts[name] for name in chunk})


def _score(plan: Plan, scorers: Sequence[str], texts: dict[str, str]) -> dict[str, str]:
    given = {f"scorer/{name}": plan.scorers[name].scorer for name in scorers}
    outputs = {f"scores/{name}": step_key("scorer.score", {}, {**given, "texts": key}) for name, key in texts.items()}
    inputs = {**given, **{f"texts/{name}": key for name, key in texts.items()}}
    plan.add(_task("scorer.score", inputs, outputs, {}))
    return {name: outputs[f"scores/{name}"] for name in texts}


def _chunks(items: Sequence[str], size: int) -> list[Sequence[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
