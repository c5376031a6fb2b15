"""What a run measures, with every name checked and resolved: the input of each stage of the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from poolbench.concepts import CONCEPTS, Concept
from poolbench.directions import CONSTRUCTIONS, available_directions
from poolbench.errors import ConfigError, UnknownConceptError
from poolbench.pooling.registry import STRATEGIES, StrategySpec, select_strategies, strategies_of
from poolbench_corpora.io import read_manifest
from poolbench_driver.config import ConceptsConfig, corpus_folder
from poolbench_driver.corpora.sources import all_concepts, dataset_revision, run_dataset
from poolbench_driver.imports.saes import SaeInput
from poolbench_driver.imports.steered_texts import ImportedTexts
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.stage import PlanFacts

#: The strategy whose vectors the null directions are made from.
NULL_BASE = "A1_mean"
#: Texts that one task generates, where a strategy has fewer: as many as one batch of the engine, so that a task takes
#: seconds and its batches are full.
TEXTS_PER_TASK = 256
#: Strategies of a task with few texts each.
MOST_STRATEGIES = 4

#: Tokens of a language model per token of a corpus window, which counts words and punctuation.
TOKENS_PER_WORD = 1.25
#: Shortest and longest planted passage by default (`poolbench_corpora.planted`).
_PLANTED_WINDOW = (90, 140)

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Scope:
    """A resolved run."""

    config: ConceptsConfig
    model: ModelInfo
    strategies: tuple[StrategySpec, ...]
    annotator_version: str | None = None  # of the spaCy pipeline, because its version changes annotations
    absent: Mapping[str, str] = field(default_factory=dict)  # neighbours without passages (hence scorer): the reason
    # Keys committed before planning. They only decide which service makes vectors: the pooler if states were kept.
    present: frozenset[str] = frozenset()
    saes: Mapping[int, SaeInput] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what the run says before it starts
    imported_texts: ImportedTexts | None = None  # texts along strategies that others published

    @cached_property
    def concepts(self) -> list[Concept]:
        """Return the concepts that are measured."""
        return [CONCEPTS.get(name) for name in self.config.concepts]

    @cached_property
    def layers(self) -> list[int]:
        """Return the layers that D1 is measured at."""
        return self.model.layers(self.config.layers)

    @cached_property
    def steering_layer(self) -> int:
        """Return the layer that D2 and D3 steer at."""
        return self.model.layer(self.config.steering_layer) if self.steers else self.layers[-1]

    @cached_property
    def layers_with_steering(self) -> list[int]:
        """Return the layers that vectors are needed at."""
        return sorted({*self.layers, self.steering_layer} if self.steers else self.layers)

    @cached_property
    def steers(self) -> bool:
        """Return whether D2 or D3 is measured."""
        return bool({"d2", "d3"} & set(self.config.metrics))

    @cached_property
    def pooled(self) -> list[StrategySpec]:
        """Return the strategies that pool vectors: the ranked strategies, and the base of the null directions."""
        base = [STRATEGIES.get(NULL_BASE)] if self.steers else []
        ranked = [spec for spec in self.strategies if not spec.reads_states]
        return [*ranked, *(spec for spec in base if spec not in ranked)]

    @cached_property
    def state_readers(self) -> list[StrategySpec]:
        """Return the strategies whose probes read the states of every token."""
        return [spec for spec in self.strategies if spec.reads_states]

    @cached_property
    def keeps_states(self) -> bool:
        """Return whether hidden states are stored: on request, or because a strategy reads hidden states."""
        return self.config.keep_activations or bool(self.state_readers)

    @cached_property
    def strategy_groups(self) -> list[list[StrategySpec]]:
        """Return the strategies in groups. One task probes one group.

        Strategies whose probes need the vectors of all concepts are in other groups than strategies that need one
        concept alone, so that a concept that fails does not stop the probes of other concepts.
        """
        groups = [[spec for spec in self.strategies if spec.common_component is shared] for shared in (False, True)]
        return [portion for specs in groups for portion in self._portions(specs)]

    @cached_property
    def strategy_batches(self) -> list[list[str]]:
        """Return the ids of the strategies in batches. One task steers or scores one batch."""
        return self._portions([spec.id for spec in self.strategies])

    def _portions(self, items: Sequence[_Item]) -> list[list[_Item]]:
        """Return items in portions of as many strategies as one task takes.

        Tasks are short for two reasons: the last tasks of a run should leave no GPU idle, and the texts of a strategy
        should not wait for the probes of all other strategies. The size depends on the budget, never on the cluster.
        """
        texts = len(self.config.budget.strengths) * self.config.budget.num_openings * self.config.steering.num_samples
        size = min(MOST_STRATEGIES, max(1, TEXTS_PER_TASK // texts))
        return [list(items[start : start + size]) for start in range(0, len(items), size)]

    @property
    def is_lazy(self) -> bool:
        """Return whether half of the openings have texts at few strengths only."""
        return self.config.steering.reading == "lazy" and self.imported_texts is None

    @cached_property
    def scored_concepts(self) -> list[Concept]:
        """Return the concepts that need a scorer: the measured ones and, for D3, their neighbours."""
        ids = dict.fromkeys(name for concept in self.concepts for name in self.scorers_of(concept))
        return [CONCEPTS.get(name) for name in ids]

    @property
    def model_params(self) -> dict[str, Any]:
        """Return the task parameters that name the model and say whether a BOS token is added to texts."""
        return self.model.params | ({"add_bos": True} if self.config.add_bos else {})

    @property
    def reading_params(self) -> dict[str, Any]:
        """Return the parameters of the model and its input, which every key of vectors and states depends on."""
        return {**self.model_params, "include_bos": self.config.include_bos, **self.config.sink_settings}

    @cached_property
    def passage_tokens(self) -> float:
        """Return the expected tokens of a passage: the middle of the window of the corpus."""
        corpus = self.config.corpus
        windows = [concept.token_window for concept in self.concepts]
        if not all(concept.corpus for concept in self.concepts):
            if corpus.window:
                windows = [corpus.window]
            elif corpus.source == "planted":
                windows = [_PLANTED_WINDOW]
            elif manifest := read_manifest(corpus_folder(corpus.source)):
                windows = [manifest.window]
        return TOKENS_PER_WORD * sum(sum(window) / 2 for window in windows) / max(1, len(windows))

    @cached_property
    def imported(self) -> dict[str, str]:
        """Return, by key, how to import again each artifact that no task makes."""
        config, layers = self.config, sorted({layer for _, _, layer in self.model.imported})
        command = (
            f"poolbench-driver import activations FOLDER --name {config.model.partition(':')[2]} "
            f"--corpus {config.corpus.source} --layers {','.join(map(str, layers))}"
        )
        states = f"no task makes it again: import it with `{command}`"
        sae = "no task makes it again: name the folder of the autoencoder as `path` in `saes`, and the run imports it"
        return dict.fromkeys(self.model.imported.values(), states) | {
            sae_input.key: sae for sae_input in self.saes.values()
        }

    @cached_property
    def facts(self) -> PlanFacts:
        """Return the facts of a plan of this scope that the frame reads."""
        dataset = run_dataset(self.config, self.concepts)
        return PlanFacts(
            model=self.model,
            dataset=dataset["source"],
            dataset_revision=dataset_revision(dataset),
            task="concept",
            passage_tokens=self.passage_tokens,
            imported=self.imported,
            notes=self.notes,
        )

    def scorers_of(self, concept: Concept) -> list[str]:
        """Return the concepts whose scorers score a concept's texts: itself and, for D3, its neighbours if present."""
        names = wanted_scorers(self.config, concept)
        return [name for name in names if name == concept.id or name not in self.absent]


def wanted_scorers(config: ConceptsConfig, concept: Concept) -> list[str]:
    """Return the concept itself and, for D3, its neighbours."""
    neighbours = concept.neighbours if "d3" in config.metrics else ()
    return list(dict.fromkeys([concept.id, *neighbours]))


def resolve_names(config: ConceptsConfig) -> tuple[ConceptsConfig, list[StrategySpec]]:
    """Return the configuration with every name resolved, and its strategies. Raise UnknownNameError or ConfigError."""
    if config.steering.further and config.steered_texts is not None:
        raise ConfigError("steering.further: texts of others have one direction; leave out steered_texts, or further")
    for name in config.steering.directions:
        CONSTRUCTIONS.get(name)
        if name not in available_directions(("sae",) if config.saes else ()):
            raise ConfigError(
                f"direction {name} needs a sparse autoencoder of the steering layer; name it under `saes`"
            )
    concepts, strategies = concepts_of(config), select_strategies(config.strategies or None)
    spelled = {"concepts": tuple(concepts), "strategies": tuple(spec.id for spec in strategies)}
    return config.model_copy(update=spelled), strategies


def neighbours_of(config: ConceptsConfig) -> list[str]:
    """Return the concepts of which only a scorer and a direction are needed."""
    if not {"d2", "d3"} & set(config.metrics):
        return []
    concept_of = {name: c for c in config.concepts for name in wanted_scorers(config, CONCEPTS.get(c))}
    for name, concept in concept_of.items():
        try:
            CONCEPTS.get(name)
        except UnknownConceptError:
            reason = f"concept {concept} has the neighbour {name}, which is not registered: add it"
            raise ConfigError(f"{reason}, or add {concept} again without it") from None
    return [name for name in concept_of if name not in config.concepts]


def concepts_of(config: ConceptsConfig) -> list[str]:
    """Return the ids of a run's concepts without duplicates. Raise UnknownConceptError with the nearest valid names."""
    if config.concepts in ((), ("all",)):
        return all_concepts(config.corpus.source)
    return list(dict.fromkeys(CONCEPTS.get(name).id for name in config.concepts))


def left_out(strategies: Sequence[StrategySpec]) -> str:
    """Return a line that names the card's on-request strategies not in `strategies`, or "" if there are none."""
    strategy_ids = {spec.id for spec in strategies}
    names = [spec.id for spec in strategies_of("card") if spec.on_request and spec.id not in strategy_ids]
    return f"left out, run on request only: {', '.join(names)} (--strategies card,{','.join(names)})" if names else ""
