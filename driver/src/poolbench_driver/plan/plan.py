"""The plan as data: which artifact holds what, and the tasks that make them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poolbench.concepts import Concept, get_concept
from poolbench.config import RunConfig
from poolbench.contracts.keys import is_restricted
from poolbench.contracts.tasks import Task, step_key
from poolbench.pooling.registry import StrategySpec, get_strategy
from poolbench_driver.corpora import LocalStep, passages_step
from poolbench_driver.models import ModelInfo

#: The strategy under the null directions.
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
    published: dict[tuple[str, int], str] = field(default_factory=dict)  # measures by the published protocol
    nested: dict[str, str] = field(default_factory=dict)  # strategy: measures at the layer chosen inside the folds
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
    present: frozenset[str] = frozenset()  # what was committed when the plan was made
    local: dict[str, LocalStep] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    concepts: dict[str, ConceptPlan] = field(default_factory=dict)
    neighbours: dict[str, ConceptPlan] = field(default_factory=dict)  # not measured themselves
    scorers: dict[str, ScorerPlan] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # neighbours that the corpus lacks, and why
    annotator: dict[str, Any] = field(default_factory=dict)  # parameters of pooler.annotate
    frequencies: str = ""  # how often tokens occur in the train passages of all concepts
    components: dict[tuple[str, int], str] = field(default_factory=dict)  # strategy, layer
    saes: dict[int, tuple[str, int]] = field(default_factory=dict)  # layer: key of its autoencoder, features of C5
    calibration: str = ""
    openings: str = ""
    unsteered: tuple[str, str, str] = ("", "", "")  # texts, fluency, scores

    def add(self, task: Task) -> dict[str, str]:
        """Adds a task and returns its outputs."""
        self.tasks[task.task_id] = task
        return task.outputs

    def add_step(self, kind: str, role: str, inputs: dict[str, str], params: dict[str, Any]) -> str:
        """Adds a task with one output, whose key depends on all its parameters and inputs; returns the key."""
        key = step_key(kind, params, inputs)
        return self.add(Task(kind=kind, inputs=inputs, outputs={role: key}, params=params))[role]

    def add_local(self, step: LocalStep) -> str:
        """Adds a step that the driver does itself; returns its key."""
        self.local[step.key] = step
        return step.key

    def add_passages(self, concept: Concept, split: str) -> str:
        """The passages of one concept and split; returns their key."""
        return self.add_local(passages_step(self.config, concept, split))

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
        ranked = [spec for spec in self.implemented if not spec.reads_states]
        return [*ranked, *(spec for spec in base if spec not in ranked)]

    @property
    def state_readers(self) -> list[StrategySpec]:
        """The strategies whose probes read the states themselves."""
        return [spec for spec in self.implemented if spec.reads_states]

    @property
    def keeps_states(self) -> bool:
        """Whether states are kept: on request, or because a strategy reads them."""
        return self.config.keep_activations or bool(self.state_readers)

    @property
    def restricted(self) -> bool:
        """Whether something of a sensitive concept is in it: one that is measured, or a neighbour."""
        return any(map(is_restricted, self.local)) or any(task.restricted for task in self.tasks.values())

    def layers_with_steering(self) -> list[int]:
        """The layers that vectors are needed at."""
        return sorted({*self.layers, self.steering_layer} if self.steers else self.layers)

    def producers(self) -> dict[str, Task]:
        """The task that produces each key."""
        return {key: task for task in self.tasks.values() for key in task.outputs.values()}


def scored_concepts(plan: Plan) -> list[Concept]:
    """The concepts that need a scorer: the measured ones and, for D3, their neighbours."""
    ids = dict.fromkeys(name for cells in plan.concepts.values() for name in scorers_of(plan, cells.concept))
    return [get_concept(name) for name in ids]


def scorers_of(plan: Plan, concept: Concept) -> list[str]:
    """The scorers that a concept's steered texts are given to: its own, and for D3 those its neighbours have."""
    names = wanted_scorers(plan.config, concept)
    return [name for name in names if name == concept.id or name not in plan.absent]


def wanted_scorers(config: RunConfig, concept: Concept) -> list[str]:
    """The concept itself and, for D3, its neighbours."""
    neighbours = concept.neighbours if "d3" in config.metrics else ()
    return list(dict.fromkeys([concept.id, *neighbours]))
