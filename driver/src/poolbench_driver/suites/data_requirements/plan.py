"""From the settings of a run to its tasks: sets, what each model reads of them, and a pilot for each side and set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from poolbench.config import change_revision, local_folder
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import prober as steps
from poolbench.steps.extractor import ChangeParams
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import Control
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.stages.example_vectors import FROM_FILE, VectorsFile, plan_file_vectors, read_vectors
from poolbench_driver.stages.probing_sets import (
    SetVectors,
    facts_of_sets,
    plan_set_vectors,
    read_under,
    reading_params,
)
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, Stage, joined
from poolbench_driver.suites.data_requirements.config import Configuration, DataRequirementsConfig
from poolbench_driver.suites.data_requirements.sets import check_names, read_sets, sizes_of
from poolbench_driver.waiting import waiting


class PassageReader(NamedTuple):
    """The reader of the passages of sets: a model, a change of its weights, and a control."""

    model: str
    adapter: str | None
    control: Control | None


@dataclass(frozen=True)
class DataScope:
    """A resolved run."""

    config: DataRequirementsConfig
    model: ModelInfo  # that of the run
    models: Mapping[str, ModelInfo]  # by name, of all sides
    adapters: Mapping[str, ChangeParams]  # by folder
    files: Mapping[str, VectorsFile]  # by name
    data: Mapping[str, ProbingData]
    sizes: Mapping[str, tuple[int, ...]]  # of each set's samples, the smallest first
    notes: tuple[str, ...]

    def cell(self, side: Configuration) -> Cell:
        """Return the strategy and layer that a side reads."""
        if side.vectors is not None:
            return FROM_FILE
        return Cell(side.strategy, self.models[self.source(side).model].layer(side.layer))

    def source(self, side: Configuration) -> PassageReader:
        """Return the model, adapter and control that one side of a comparison reads its passages with."""
        return PassageReader(side.model or self.config.model, side.adapter, side.control)

    @property
    def facts(self) -> PlanFacts:
        """Return the facts of a plan of this scope that the frame reads."""
        return facts_of_sets(self.model, self.config.corpus, self.data, self.notes)


@dataclass(frozen=True)
class DataPlan(Plan):
    """Keys of the answers of each side, by number of the side and set."""

    scope: DataScope
    answers: Mapping[tuple[int, str], str]
    published: Mapping[tuple[int, str], str]  # of the probes of the reference, with protocol `published`


def check(config: DataRequirementsConfig) -> None:
    """Raise UnknownNameError, ConfigError or InputError for sets, strategies, adapters or files that are not there."""
    check_names(config)
    for side in config.sides:
        if STRATEGIES.get(side.strategy).reads_counts:
            raise ConfigError(
                f"strategy {side.strategy} reads token counts of train passages, and folds rotate; name another one"
            )
        if side.adapter is not None:
            _adapter(side.adapter)
    for path in config.vectors.values():
        read_vectors(Path(path))


def resolve(config: DataRequirementsConfig, session: Session, model: ModelInfo | None = None) -> DataScope:
    """Return the scope of a run.

    Raises:
        ConfigError: A size is above the examples of a set.
        CorpusError: No set can be read.
    """
    model = model or describe_model(config, session.services)
    models = {config.model: model}
    for name in dict.fromkeys(side.model for side in config.sides if side.model is not None):
        if name not in models:
            other = config.model_copy(update={"model": name, "model_revision": None, "dtype": None})
            models[name] = describe_model(other, session.services)
    with waiting(f"reading {len(config.sets)} sets"):
        data, notes = read_sets(config)
    available = {name: set_data.instances.num_rows for name, set_data in data.items()}
    if config.sizes and (small := [name for name, number in available.items() if number < max(config.sizes)]):
        raise ConfigError(f"sizes {max(config.sizes)}: {small[0]} has {available[small[0]]} examples; at most as many")
    if few := [name for name, number in available.items() if number < 2 * config.folds]:
        raise ConfigError(
            f"folds {config.folds}: {few[0]} has {available[few[0]]} examples, and a fold needs two; take fewer folds"
        )
    return DataScope(
        config=config,
        model=model,
        models=models,
        adapters={side.adapter: _adapter(side.adapter) for side in config.sides if side.adapter is not None},
        files={name: read_vectors(Path(path)) for name, path in config.vectors.items()},
        data=data,
        sizes={name: tuple(sizes_of(config, number)) for name, number in available.items()},
        notes=tuple(notes),
    )


def _adapter(name: str) -> ChangeParams:
    folder = local_folder(name)
    if folder is None:
        raise UnknownNameError("folder of a fine-tune", name, ())
    return ChangeParams(source=str(folder), revision=change_revision(folder))


def plan(scope: DataScope) -> DataPlan:
    """Return the plan of a run."""
    draft, answers, published = Draft(), dict[tuple[int, str], str](), dict[tuple[int, str], str]()
    vectors = _plan_vectors(scope, draft)
    for number, side in enumerate(scope.config.sides):
        cell = scope.cell(side)
        for name, set_vectors in vectors[side.vectors or scope.source(side)].items():
            for keys, params in zip((answers, published), _pilot_params(scope, side, name), strict=False):
                key = steps.PILOT.key(steps.ANSWERS(*cell), params, set_vectors.identity([cell]))
                draft.add(steps.PILOT, params, set_vectors.inputs([cell]), {steps.ANSWERS(*cell): key})
                keys[number, name] = key
    return DataPlan(scope.config, joined([Stage(draft.work)]), scope.facts, scope, answers, published)


def _pilot_params(scope: DataScope, side: Configuration, name: str) -> Iterator[steps.PilotParams]:
    """Yield the parameters of a pilot, and with protocol `published` those with the probes of the reference.

    The reference has no probe whose C is chosen by a code length.
    """
    of_side = ("hidden", "noise", "label_noise", "code_length")
    options: dict[str, Any] = {option: value for option in of_side if (value := getattr(side, option))}
    options |= {"seeds": scope.config.seeds, "sizes": scope.sizes[name], "folds": scope.config.folds}
    yield steps.PilotParams(task=name, **options)
    if scope.config.protocol == "published" and not side.code_length:
        yield steps.PilotParams(task=name, protocol="published", **options)


def _plan_vectors(scope: DataScope, draft: Draft) -> dict[str | PassageReader, dict[str, SetVectors]]:
    """Plan the vectors of all sets, by file or by model. Configurations that share a model share its reading."""
    config = scope.config
    vectors: dict[str | PassageReader, dict[str, SetVectors]] = {
        name: {set_name: plan_file_vectors(draft, set_name, data, file) for set_name, data in scope.data.items()}
        for name, file in scope.files.items()
    }
    cells_by_source: dict[PassageReader, set[Cell]] = {}
    for side in config.sides:
        if side.vectors is None:
            cells_by_source.setdefault(scope.source(side), set()).add(scope.cell(side))
    for source, cells in cells_by_source.items():
        strategies = [STRATEGIES.get(strategy) for strategy in sorted({cell.strategy for cell in cells})]
        layers = sorted({cell.layer for cell in cells})
        params = reading_params(config, scope.models[source.model], strategies, layers, source.control)
        if source.adapter is not None:
            params = params.model_copy(update={"change": scope.adapters[source.adapter]})
        annotator = config.annotator if any(spec.reads_annotations for spec in strategies) else None
        data = read_under(scope.data, source.control, config.seed)
        vectors[source] = plan_set_vectors(draft, data, params, annotator)
    return vectors
