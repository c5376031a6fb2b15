"""What a run measures, with every name resolved: what each stage of the plan reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from poolbench.concepts import CONCEPTS, Concept
from poolbench.config import RunConfig
from poolbench.pooling.registry import STRATEGIES, StrategySpec
from poolbench_driver.imports.saes import SaeInput
from poolbench_driver.models import ModelInfo

#: The strategy whose vectors the null directions are made from.
NULL_BASE = "A1_mean"


@dataclass(frozen=True)
class Scope:
    """A resolved run.

    Attributes:
        config: Configuration.
        model: Revision, depth and width of the model.
        strategies: Strategies to rank.
        annotator_version: Version of the spaCy pipeline; another one makes other annotations.
        absent: Neighbours that the corpus has no passages of, with the reason; they get no scorer.
        present: Keys that were committed when the plan was made. They decide only who makes vectors: where states
            were kept, the pooler does, without the model.
        saes: Sparse autoencoders by layer.
    """

    config: RunConfig
    model: ModelInfo
    strategies: tuple[StrategySpec, ...]
    annotator_version: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    saes: Mapping[int, SaeInput] = field(default_factory=dict)

    @cached_property
    def concepts(self) -> list[Concept]:
        """The concepts that are measured."""
        return [CONCEPTS.get(name) for name in self.config.concepts]

    @cached_property
    def layers(self) -> list[int]:
        """The layers that D1 is measured at."""
        return self.model.layers(self.config.layers)

    @cached_property
    def steering_layer(self) -> int:
        """The layer that D2 and D3 steer at."""
        return self.model.layer(self.config.steering_layer) if self.steers else self.layers[-1]

    @cached_property
    def layers_with_steering(self) -> list[int]:
        """The layers that vectors are needed at."""
        return sorted({*self.layers, self.steering_layer} if self.steers else self.layers)

    @cached_property
    def steers(self) -> bool:
        """Whether D2 or D3 is measured."""
        return bool({"d2", "d3"} & set(self.config.metrics))

    @cached_property
    def pooled(self) -> list[StrategySpec]:
        """The strategies that vectors are made of: the ranked ones, and the base of the null directions."""
        base = [STRATEGIES.get(NULL_BASE)] if self.steers else []
        ranked = [spec for spec in self.strategies if not spec.reads_states]
        return [*ranked, *(spec for spec in base if spec not in ranked)]

    @cached_property
    def state_readers(self) -> list[StrategySpec]:
        """The strategies whose probes read the states of every token."""
        return [spec for spec in self.strategies if spec.reads_states]

    @cached_property
    def keeps_states(self) -> bool:
        """Whether states are kept: on request, or because a strategy reads them."""
        return self.config.keep_activations or bool(self.state_readers)

    @cached_property
    def strategy_groups(self) -> list[list[StrategySpec]]:
        """Strategies whose probes need one concept alone, and those that need the vectors of all concepts.

        They are probed in separate tasks, so that a concept that fails stops no probe of another.
        """
        groups = [[spec for spec in self.strategies if spec.common_component is shared] for shared in (False, True)]
        return [specs for specs in groups if specs]

    @cached_property
    def scored_concepts(self) -> list[Concept]:
        """The concepts that need a scorer: the measured ones and, for D3, their neighbours."""
        ids = dict.fromkeys(name for concept in self.concepts for name in self.scorers_of(concept))
        return [CONCEPTS.get(name) for name in ids]

    @property
    def model_params(self) -> dict[str, Any]:
        """The task parameters that name the model."""
        return self.model.params

    def scorers_of(self, concept: Concept) -> list[str]:
        """Return the concepts whose scorers score a concept's texts: its own, and for D3 its neighbours'."""
        names = wanted_scorers(self.config, concept)
        return [name for name in names if name == concept.id or name not in self.absent]


def wanted_scorers(config: RunConfig, concept: Concept) -> list[str]:
    """Return the concept itself and, for D3, its neighbours."""
    neighbours = concept.neighbours if "d3" in config.metrics else ()
    return list(dict.fromkeys([concept.id, *neighbours]))
