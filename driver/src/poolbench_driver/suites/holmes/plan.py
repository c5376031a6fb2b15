"""From the settings of a run to its tasks: probing sets, shards of distinct passages, and one probing task per set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, CorpusError
from poolbench.pooling.registry import StrategySpec, select_strategies
from poolbench.steps import prober as steps
from poolbench.steps.base import Keys, StrategyParam
from poolbench.steps.extractor import ANNOTATIONS, EXTRACT, PASSAGES, VECTORS, ExtractParams, RandomWeights
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, AnnotateParams
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData, ProbingSet, shared_passages
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import NO_FOLDER
from poolbench_driver.corpora.sources import chosen_sets, stored_rows
from poolbench_driver.models import ModelInfo, annotator_version, describe_model
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, Stage, first_notes, joined
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.thinning import RANDOM_WEIGHTS, WORD_ORDER, thinned, without_order
from poolbench_driver.waiting import waiting

#: Passages of one extraction.
SHARD = 2000
#: Expected tokens of a text, for estimates.
_TEXT_TOKENS = 20.0


class Probed(NamedTuple):
    """A probing set, read through a strategy at a layer, as it is or under a control."""

    set: str
    strategy: str
    layer: int
    control: str = ""


@dataclass(frozen=True)
class HolmesScope:
    """A resolved run."""

    config: HolmesConfig
    model: ModelInfo
    strategies: tuple[StrategySpec, ...]
    sets: Mapping[str, ProbingSet]  # definitions of the sets that could be read
    data: Mapping[str, ProbingData]  # their instances and passages
    notes: tuple[str, ...]  # sets that could not be read, and samples that were left out, with the reasons

    @cached_property
    def layers(self) -> list[int]:
        """Return the layers that are read."""
        return self.model.layers(self.config.layers)

    def data_of(self, control: str) -> Mapping[str, ProbingData]:
        """Return the sets as they are read under a control; empty for none."""
        if control != WORD_ORDER:
            return self.data
        return {name: without_order(data, self.config.seed) for name, data in self.data.items()}

    @property
    def facts(self) -> PlanFacts:
        """Return what the frame knows of a plan of it."""
        revisions = digest({name: data.instances.to_pylist() for name, data in self.data.items()}, 16)
        notes = first_notes(self.notes)
        source = self.config.corpus.source if self.config.corpus.source in NO_FOLDER else "folder"
        return PlanFacts(self.model, source, revisions, "probing", passage_tokens=_TEXT_TOKENS, notes=notes)


@dataclass(frozen=True)
class HolmesPlan(Plan):
    """Keys of measures and predictions; `published` by the definition of the reference."""

    scope: HolmesScope
    probes: Mapping[Probed, Keys]
    published: Mapping[Probed, Keys]


def strategies_of(config: HolmesConfig) -> list[StrategySpec]:
    """Return the strategies of a run; raise UnknownNameError, or ConfigError for one that reads token counts."""
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
    catalogue, sets = chosen_sets(config)
    with waiting(f"reading {len(sets)} probing sets"):
        data, notes = catalogue.read_all(sets, config.seed)
        if not data:
            raise CorpusError(f"no probing set can be read: {notes[0] if notes else 'the corpus has none'}")
        left_out = [str(note) for note in notes] + [str(note) for set_data in data.values() for note in set_data.notes]
        data = {name: thinned(set_data, config) for name, set_data in data.items()}
    sets_by_name = {probing_set.id: probing_set for probing_set in sets if probing_set.id in data}
    return HolmesScope(config, model, tuple(strategies_of(config)), sets_by_name, data, tuple(left_out))


def plan(scope: HolmesScope) -> HolmesPlan:
    """Return the plan of a run."""
    keys, published = dict[Probed, Keys](), dict[Probed, Keys]()
    stages = [_plan_probes(scope, control, keys, published) for control in ("", *scope.config.control)]
    return HolmesPlan(scope.config, joined(stages), scope.facts, scope, keys, published)


def _plan_probes(scope: HolmesScope, control: str, keys: dict[Probed, Keys], published: dict[Probed, Keys]) -> Stage:
    """Plan the reading of all passages in shards, and the tasks of each set and layer, under a control or none.

    The keys of measures and predictions are added to `keys`, and to `published` those by the reference's definition.
    """
    draft, read = Draft(), scope.data_of(control)
    shards, place = list[Keys](), dict[str, int]()
    shared = shared_passages(read.values())
    reader = _Reader(scope, draft, control, shared)
    for number, passages in enumerate(_shards(shared)):
        shards.append(reader.read(passages, draft))
        place |= dict.fromkeys(passages["passage_id"].to_pylist(), number)
    for name, data in read.items():
        instances = {steps.INSTANCES(): draft.add_local(stored_rows(f"instances of {name}", data.instances, "probing"))}
        used = sorted({place[row] for row in data.passages["passage_id"].to_pylist()})
        alone = reader.read(shared_passages([data]), Draft())
        for layer in scope.layers:
            cells = [Cell(spec.id, layer) for spec in scope.strategies]
            inputs = instances | {
                steps.TASK_VECTORS(*cell, f"{n}"): shards[n][VECTORS(*cell)] for cell in cells for n in used
            }
            # Shards depend on the other sets of the run. A key is that of the set read by itself.
            by_itself = instances | {steps.TASK_VECTORS(*cell, "0"): alone[VECTORS(*cell)] for cell in cells}
            for probe_keys, params in zip((keys, published), _probe_params(scope, name), strict=False):
                parts = {"measures": steps.MEASURES, "predictions": steps.PREDICTIONS}
                cell_keys = {
                    cell: {part: steps.TASK.key(role(*cell), params, by_itself) for part, role in parts.items()}
                    for cell in cells
                }
                outputs = {role(*cell): cell_keys[cell][part] for cell in cells for part, role in parts.items()}
                draft.add(steps.TASK, params, inputs, outputs)
                probe_keys |= {Probed(name, *cell, control): part_keys for cell, part_keys in cell_keys.items()}
    return Stage(draft.work)


def _probe_params(scope: HolmesScope, name: str) -> list[steps.TaskParams]:
    """Return how a set is probed: by our definition and, with protocol `published`, by that of the reference.

    Code lengths by the definition of the released code are among the figures of the first.
    """
    config = scope.config
    words = scope.data[name].instances["word"]
    control: Any = "word_type" if words.null_count < len(words) else "permuted"
    shared = {"task": name, "control": control, "num_bootstrap": config.budget.num_bootstrap}
    params = [steps.TaskParams(seeds=tuple(range(config.seed, config.seed + config.seeds)), **shared)]
    if config.protocol == "published":
        of_texts = scope.sets[name].input in ("text", "text_pair")
        params.append(steps.TaskParams(protocol=config.recipe, float16=of_texts, compression=False, **shared))
    return params


class _Reader:
    """Reads passages by all strategies and layers, under a control or none."""

    def __init__(self, scope: HolmesScope, draft: Draft, control: str, passages: pa.Table) -> None:
        """Plan for a run with these passages, which document frequencies come from, without their labels.

        A text serves several sets and, under other seeds, other splits, so there are no train texts alone. A shard
        would be another reference for each set of sets.
        """
        config, pipeline = scope.config, scope.config.annotator
        self._annotate: AnnotateParams | None = None
        self._reference = ""
        if any(spec.reads_annotations for spec in scope.strategies):
            texts = sorted(set(passages["text"].to_pylist()))
            table = pa.table({"text": texts, "split": ["train"] * len(texts)})
            self._reference = draft.add_local(stored_rows("texts of the run", table, "probing"))
            self._annotate = AnnotateParams(pipeline=pipeline, pipeline_version=annotator_version(pipeline))
        reading = {
            **scope.model.params,
            **({"add_bos": True} if config.add_bos else {}),
            **config.sink_settings,
            **({"change": RandomWeights(seed=config.seed)} if control == RANDOM_WEIGHTS else {}),
        }
        self._extract = ExtractParams(
            **reading,
            include_bos=config.include_bos,
            strategies=[
                StrategyParam(id=spec.id, params=spec.resolve(spec.params_for(()))) for spec in scope.strategies
            ],
            layers=scope.layers,
        )
        self._roles = [VECTORS(spec.id, layer) for spec in scope.strategies for layer in scope.layers]

    def read(self, passages: pa.Table, draft: Draft) -> Keys:
        """Plan the vectors of some passages; return their keys by role."""
        inputs = {PASSAGES(): draft.add_local(stored_rows("passages", passages, "probing"))}
        if self._annotate is not None:
            annotate_inputs = inputs | {IDF_PASSAGES(): self._reference}
            inputs |= draft.add(ANNOTATE, self._annotate, annotate_inputs, [ANNOTATIONS()])
        return draft.add(EXTRACT, self._extract, inputs, self._roles)


def _shards(passages: pa.Table) -> Iterator[pa.Table]:
    """Yield portions of passages; the spans of one text stay together, so that it is read once."""
    portion: list[dict[str, object]] = []
    for _, spans in groupby(passages.to_pylist(), key=lambda row: row["text"]):
        portion += spans
        if len(portion) >= SHARD:
            yield pa.Table.from_pylist(portion, passages.schema)
            portion = []
    if portion:
        yield pa.Table.from_pylist(portion, passages.schema)
