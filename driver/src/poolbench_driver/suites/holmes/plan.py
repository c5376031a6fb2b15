"""From the settings of a run to its tasks: probing sets, shards of distinct passages, and one probing task per set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from poolbench.errors import ConfigError, CorpusError
from poolbench.pooling.registry import StrategySpec, select_strategies
from poolbench.steps import prober as steps
from poolbench.steps.base import Keys
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData, ProbingSet
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import Control
from poolbench_driver.corpora.sources import chosen_sets
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.stages.example_vectors import (
    FROM_FILE,
    VectorsFile,
    plan_bags_of_words,
    plan_file_vectors,
    read_vectors,
)
from poolbench_driver.stages.probing_sets import (
    SetVectors,
    facts_of_sets,
    plan_set_vectors,
    read_under,
    reading_params,
)
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, Stage, joined
from poolbench_driver.suites.holmes.config import BAG_OF_WORDS, HolmesConfig
from poolbench_driver.suites.holmes.thinning import thinned
from poolbench_driver.waiting import waiting


class ProbeCell(NamedTuple):
    """A probing set with its reader: a strategy at a layer (with or without a control), or given vectors."""

    set: str
    strategy: str
    layer: int
    control: Control | None = None
    vectors: str | None = None  # name of vectors that no model of the run makes, which have neither strategy nor layer


@dataclass(frozen=True)
class HolmesScope:
    """A resolved run."""

    config: HolmesConfig
    model: ModelInfo
    strategies: tuple[StrategySpec, ...]
    sets: Mapping[str, ProbingSet]  # definitions of the sets that could be read
    data: Mapping[str, ProbingData]  # their instances and passages
    notes: tuple[str, ...]  # sets that could not be read, and samples that were left out, with the reasons
    files: Mapping[str, VectorsFile] = field(default_factory=dict)  # vectors by name

    @cached_property
    def layers(self) -> list[int]:
        """Return the layers that are read."""
        return self.model.layers(self.config.layers)

    def data_of(self, control: Control | None) -> Mapping[str, ProbingData]:
        """Return the sets as they are read under a control."""
        return read_under(self.data, control, self.config.seed)

    @property
    def facts(self) -> PlanFacts:
        """Return the facts of a plan of this scope that the frame reads."""
        return facts_of_sets(self.model, self.config.corpus, self.data, self.notes)


@dataclass(frozen=True)
class HolmesPlan(Plan):
    """Keys of measures and predictions. The keys in `published` follow the definition of the reference."""

    scope: HolmesScope
    probes: Mapping[ProbeCell, Keys]
    published: Mapping[ProbeCell, Keys]


def strategies_of(config: HolmesConfig) -> list[StrategySpec]:
    """Return the strategies of a run.

    Raise UnknownNameError for an unknown strategy, and ConfigError for a strategy that reads token counts.
    """
    strategies = select_strategies(config.strategies or None)
    counting = [spec.id for spec in strategies if spec.reads_counts]
    if counting:
        raise ConfigError(
            f"--strategies {', '.join(counting)}: reads token counts of train passages, and passages of this suite are "
            "in no split of their own; name other strategies"
        )
    return strategies


def resolve(config: HolmesConfig, session: Session, model: ModelInfo | None = None) -> HolmesScope:
    """Return the scope of a run. Raise CorpusError if no set can be read."""
    model = model or describe_model(config, session.services)
    catalogue, sets = chosen_sets(config.sets, config.corpus.source)
    with waiting(f"reading {len(sets)} probing sets"):
        data, notes = catalogue.read_all(sets, config.seed)
        if not data:
            raise CorpusError(f"no probing set can be read: {notes[0] if notes else 'the corpus has none'}")
        left_out = [str(note) for note in notes] + [str(note) for set_data in data.values() for note in set_data.notes]
        data = {name: thinned(set_data, config) for name, set_data in data.items()}
    sets_by_name = {probing_set.id: probing_set for probing_set in sets if probing_set.id in data}
    strategies = tuple(strategies_of(config))
    return HolmesScope(config, model, strategies, sets_by_name, data, tuple(left_out), files_of(config))


def files_of(config: HolmesConfig) -> dict[str, VectorsFile]:
    """Read the files of vectors by name. Raise InputError for a file that cannot be read."""
    return {name: read_vectors(Path(path)) for name, path in config.vectors.items()}


def plan(scope: HolmesScope) -> HolmesPlan:
    """Return the plan of a run. Raise InputError if a file of vectors lacks an example."""
    probes = HolmesProbes(scope)
    drafts = [_plan_reading(probes, control) for control in (None, *scope.config.control)]
    drafts.append(_plan_vectors(probes))
    stages = [Stage(draft.work) for draft in drafts]
    return HolmesPlan(scope.config, joined(stages), scope.facts, scope, probes.keys, probes.published)


@dataclass(frozen=True)
class HolmesProbes:
    """The probes of a run that are planned so far: keys of measures and predictions, by ours and by the reference."""

    scope: HolmesScope
    keys: dict[ProbeCell, Keys] = field(default_factory=dict)
    published: dict[ProbeCell, Keys] = field(default_factory=dict)

    def add(
        self,
        draft: Draft,
        name: str,
        read: SetVectors,
        cells: Sequence[Cell],
        control: Control | None = None,
        vectors: str | None = None,
    ) -> None:
        """Plan one task for the probes of some cells of a set, and a second task for the probes of the reference."""
        parts = {"measures": steps.MEASURES, "predictions": steps.PREDICTIONS}
        identity = read.identity(cells)
        for probe_keys, probe in zip((self.keys, self.published), _probe_params(self.scope, name), strict=False):
            cell_keys = {
                cell: {part: steps.TASK.key(role(*cell), probe, identity) for part, role in parts.items()}
                for cell in cells
            }
            outputs = {role(*cell): cell_keys[cell][part] for cell in cells for part, role in parts.items()}
            draft.add(steps.TASK, probe, read.inputs(cells), outputs)
            probe_keys |= {ProbeCell(name, *cell, control, vectors): of_parts for cell, of_parts in cell_keys.items()}


def _plan_reading(probes: HolmesProbes, control: Control | None) -> Draft:
    """Plan the reading of all passages under a control or none, and the probes of each set and layer."""
    draft, scope = Draft(), probes.scope
    params = reading_params(scope.config, scope.model, scope.strategies, scope.layers, control)
    annotator = scope.config.annotator if any(spec.reads_annotations for spec in scope.strategies) else None
    for name, read in plan_set_vectors(draft, scope.data_of(control), params, annotator).items():
        for layer in scope.layers:
            probes.add(draft, name, read, [Cell(spec.id, layer) for spec in scope.strategies], control)
    return draft


def _plan_vectors(probes: HolmesProbes) -> Draft:
    """Plan the probes of vectors of files, and of bags of words for the sets that have instances of train."""
    draft, scope = Draft(), probes.scope
    num_dimensions = scope.config.bag_of_words
    for name, data in scope.data.items():
        for file_name, file in scope.files.items():
            read = plan_file_vectors(draft, name, data, file)
            probes.add(draft, name, read, [FROM_FILE], vectors=file_name)
        if num_dimensions is not None and "train" in data.instances["split"].to_pylist():
            read = plan_bags_of_words(draft, name, data, num_dimensions)
            probes.add(draft, name, read, [FROM_FILE], vectors=f"{BAG_OF_WORDS} {num_dimensions}")
    return draft


def _probe_params(scope: HolmesScope, name: str) -> list[steps.TaskParams]:
    """Return the parameters of the probes of a set: by our definition and, with protocol `published`, by the
    reference's.

    Code lengths by the definition of the released code are among the figures of the first.
    """
    config = scope.config
    words = scope.data[name].instances["word"]
    control: Any = "word_type" if words.null_count < len(words) else "permuted"
    shared = {"task": name, "control": control, "num_bootstrap": config.budget.num_bootstrap}
    probe: dict[str, Any] = {} if config.hidden is None else {"hidden": config.hidden}
    params = [steps.TaskParams(seeds=tuple(range(config.seed, config.seed + config.seeds)), **probe, **shared)]
    if config.protocol == "published":
        of_texts = scope.sets[name].input in ("text", "text_pair")
        params.append(steps.TaskParams(protocol=config.recipe, float16=of_texts, compression=False, **shared))
    return params
