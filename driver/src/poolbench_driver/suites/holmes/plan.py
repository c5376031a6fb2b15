"""From the settings of a run to its tasks: probing sets, shards of distinct passages, and one probing task per set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, CorpusError
from poolbench.pooling.registry import StrategySpec, select_strategies
from poolbench.steps import prober as steps
from poolbench.steps.base import Keys
from poolbench.steps.common import StrategyParam
from poolbench.steps.extractor import ANNOTATIONS, EXTRACT, PASSAGES, VECTORS, ExtractParams, RandomWeights
from poolbench.steps.local import PASSAGES as STORED
from poolbench.steps.local import TABLE, PassagesParams
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, AnnotateParams
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData, ProbingSet, ProbingSets, shared_passages
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import NO_FOLDER
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.models import ModelInfo, annotator_version, describe_model
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, Stage, joined
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.controls import RANDOM_WEIGHTS, WORD_ORDER, without_order

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
    """A resolved run.

    Attributes:
        sets: Definitions of the sets that could be read.
        data: Their instances and passages.
        notes: Sets that could not be read, and samples that were left out, with the reasons.
    """

    config: HolmesConfig
    model: ModelInfo
    strategies: tuple[StrategySpec, ...]
    sets: Mapping[str, ProbingSet]
    data: Mapping[str, ProbingData]
    notes: tuple[str, ...]

    @cached_property
    def layers(self) -> list[int]:
        """Return the layers that are read."""
        return self.model.layers(self.config.layers)

    def data_of(self, control: str) -> Mapping[str, ProbingData]:
        """Return the sets as they are read under a control; empty for none."""
        if control != WORD_ORDER:
            return self.data
        return {name: without_order(each, self.config.seed) for name, each in self.data.items()}

    @property
    def facts(self) -> PlanFacts:
        """Return what the frame knows of a plan of it."""
        revisions = digest({name: each.instances.to_pylist() for name, each in self.data.items()}, 16)
        notes = self.notes[:_SHOWN] + ((f"{len(self.notes) - _SHOWN} more notes",) if len(self.notes) > _SHOWN else ())
        source = self.config.corpus.source if self.config.corpus.source in NO_FOLDER else "folder"
        return PlanFacts(self.model, source, revisions, "probing", passage_tokens=_TEXT_TOKENS, notes=notes)


#: Notes that a run prints before it starts.
_SHOWN = 5


@dataclass(frozen=True)
class Probes(Stage):
    """Keys of measures and predictions; `published` by the definition of the reference, only where it is asked."""

    keys: Mapping[Probed, Keys]
    published: Mapping[Probed, Keys]


@dataclass(frozen=True)
class HolmesPlan(Plan):
    """Keys of measures and predictions; `published` by the definition of the reference."""

    scope: HolmesScope
    probes: Mapping[Probed, Keys]
    published: Mapping[Probed, Keys]


def chosen_sets(config: HolmesConfig) -> tuple[ProbingSets, list[ProbingSet]]:
    """Return the catalogue of a run and the sets that it names; raise UnknownNameError or CorpusError."""
    source = config.corpus.source
    catalogue = ProbingSets(*([] if source in NO_FOLDER else [Path(source)]))
    chosen = catalogue.choose(config.sets) if config.sets else catalogue.all()
    if source not in NO_FOLDER:
        found = [each for each in chosen if each.folder == Path(source)]
    else:
        found = [each for each in chosen if (each.fidelity == "planted") is (source == "planted")]
    if not found and config.sets:
        raise CorpusError(
            f"--sets {','.join(config.sets)}: no such set in corpus {source}; name another corpus (--corpus planted, "
            "real or a folder), or sets of this one (poolbench-driver ls probing-sets)"
        )
    return catalogue, found


def strategies_of(config: HolmesConfig) -> list[StrategySpec]:
    """Return the strategies of a run; raise UnknownNameError, or ConfigError for one that reads token counts."""
    found = select_strategies(config.strategies or None)
    counting = [spec.id for spec in found if spec.reads_counts]
    if counting:
        raise ConfigError(
            f"--strategies {', '.join(counting)}: reads token counts of train passages, and passages of this suite are "
            "in no split of their own; name other strategies"
        )
    return found


def resolve(config: HolmesConfig, session: Session, model: ModelInfo | None = None) -> HolmesScope:
    """Return the scope of a run. Raise CorpusError if no set can be read."""
    model = model or describe_model(config, session.services)
    catalogue, sets = chosen_sets(config)
    data, notes = catalogue.read_all(sets, config.seed)
    if not data:
        raise CorpusError(f"no probing set can be read: {notes[0] if notes else 'the corpus has none'}")
    left_out = [str(note) for note in notes] + [str(note) for each in data.values() for note in each.notes]
    data = {name: thinned(each, config) for name, each in data.items()}
    known = {each.id: each for each in sets if each.id in data}
    return HolmesScope(config, model, tuple(strategies_of(config)), known, data, tuple(left_out))


def thinned(data: ProbingData, config: HolmesConfig) -> ProbingData:
    """Return the instances that a run asks for, all with a split.

    Where a source gives no splits, they are drawn here, the same with and without `flash`: 70, 10 and 20 % of the
    groups. Of train a share of the groups is kept, and of dev and test at most so many instances. Groups are taken in a
    seeded order that takes turns between labels, so a smaller share is part of a larger one.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in data.instances.to_pylist():
        groups.setdefault(row["group"], []).append(row)
    by_label = _by_label(groups, config.seed)
    ordered = _taking_turns(by_label)
    if all(row["split"] is None for rows in groups.values() for row in rows):
        _draw_splits(groups, by_label)
    kept = list[dict[str, Any]]()
    for split in ("train", "dev", "test"):
        own = [groups[name] for name in ordered if groups[name][0]["split"] == split]
        if split == "train":
            chosen = own[: max(2, round((config.flash or 1.0) * len(own)))]
        else:
            sizes = accumulate(map(len, own))
            chosen = [rows for rows, size in zip(own, sizes, strict=True) if size <= (config.flash_eval or size)]
        kept += [row for rows in chosen for row in rows]
    kept += [row for rows in groups.values() for row in rows if rows[0]["split"] is None]
    used = {name for row in kept for name in (*row["first"], *row["second"])}
    passages = [row for row in data.passages.to_pylist() if row["passage_id"] in used]
    return ProbingData(
        pa.Table.from_pylist(passages, data.passages.schema),
        pa.Table.from_pylist(kept, data.instances.schema),
        data.notes,
    )


def _by_label(groups: Mapping[str, Sequence[Mapping[str, Any]]], seed: int) -> dict[str, list[str]]:
    """Return the groups of each label in a seeded order, labels in order of the alphabet."""
    found: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).hexdigest()):
        found.setdefault(str(groups[name][0]["label"]), []).append(name)
    return dict(sorted(found.items()))


def _taking_turns(by_label: Mapping[str, Sequence[str]]) -> list[str]:
    """Return groups in an order in which every beginning has about the labels of the whole."""
    place = {name: (n + 0.5) / len(names) for names in by_label.values() for n, name in enumerate(names)}
    return sorted(place, key=lambda name: (place[name], name))


def _draw_splits(groups: Mapping[str, list[dict[str, Any]]], by_label: Mapping[str, Sequence[str]]) -> None:
    """Give one of every ten groups to dev, two to test, and seven to train.

    Groups are counted label after label, so that all splits have the labels of the whole. In the order that takes
    turns, dev would have one of two labels and test one of five, where the groups are named after their labels.
    """
    for number, name in enumerate(chain.from_iterable(by_label.values())):
        split = {3: "test", 6: "dev", 8: "test"}.get(number % 10, "train")
        for row in groups[name]:
            row["split"] = split


def plan(scope: HolmesScope) -> HolmesPlan:
    """Return the plan of a run."""
    stages = [_plan_probes(scope, control) for control in ("", *scope.config.control)]
    keys = {at: own for stage in stages for at, own in stage.keys.items()}
    published = {at: own for stage in stages for at, own in stage.published.items()}
    return HolmesPlan(scope.config, joined(stages), scope.facts, scope, keys, published)


def _plan_probes(scope: HolmesScope, control: str) -> Probes:
    """Plan the reading of all passages in shards, and the tasks of each set and layer, under a control or none."""
    draft, read = Draft(), scope.data_of(control)
    keys, published = dict[Probed, Keys](), dict[Probed, Keys]()
    shards, place = list[dict[Cell, str]](), dict[str, int]()
    shared = shared_passages(read.values())
    reference = draft.add_local(_reference(shared)) if any(spec.reads_annotations for spec in scope.strategies) else ""
    for number, passages in enumerate(_shards(shared)):
        shards.append(_read(scope, draft, passages, reference, control))
        place |= dict.fromkeys(passages["passage_id"].to_pylist(), number)
    for name, data in read.items():
        instances = draft.add_local(_stored(f"instances of {name}", data.instances))
        used = sorted({place[row] for row in data.passages["passage_id"].to_pylist()})
        for layer in scope.layers:
            cells = [Cell(spec.id, layer) for spec in scope.strategies]
            inputs = {steps.INSTANCES(): instances}
            inputs |= {steps.TASK_VECTORS(*cell, f"{n}"): shards[n][cell] for cell in cells for n in used}
            for found, params in zip((keys, published), _probe_params(scope, name), strict=False):
                roles = [role(*cell) for cell in cells for role in (steps.MEASURES, steps.PREDICTIONS)]
                made = draft.add(steps.TASK, params, inputs, roles)
                found |= {
                    Probed(name, *cell, control): {
                        "measures": made[steps.MEASURES(*cell)], "predictions": made[steps.PREDICTIONS(*cell)]
                    }
                    for cell in cells
                }  # fmt: skip
    return Probes(draft.done(), keys, published)


def _probe_params(scope: HolmesScope, name: str) -> list[steps.TaskParams]:
    """Return how a set is probed: by our definition and, with protocol `published`, by that of the reference.

    Code lengths by the definition of the released code are among the figures of the first.
    """
    config = scope.config
    control: Any = "word_type" if _has_words(scope.data[name]) else "permuted"
    shared = {"task": name, "control": control, "num_bootstrap": config.budget.num_bootstrap}
    found = [steps.TaskParams(seeds=tuple(range(config.seed, config.seed + config.seeds)), **shared)]
    if config.protocol == "published":
        of_texts = scope.sets[name].input in ("text", "text_pair")
        found.append(steps.TaskParams(protocol=config.recipe, float16=of_texts, compression=False, **shared))
    return found


def _reference(passages: pa.Table) -> LocalStep:
    """Return the step that stores the texts that document frequencies come from: all of the run, without labels.

    A text serves several sets and, under other seeds, other splits, so there are no train texts alone. A shard would
    be another reference for each set of sets.
    """
    texts = sorted(set(passages["text"].to_pylist()))
    return _stored("texts of the run", pa.table({"text": texts, "split": ["train"] * len(texts)}))


def _read(scope: HolmesScope, draft: Draft, passages: pa.Table, reference: str, control: str) -> dict[Cell, str]:
    """Plan the vectors of one shard; return their keys. `reference` is empty where no strategy reads annotations."""
    inputs = {PASSAGES(): draft.add_local(_stored("passages", passages))}
    if reference:
        pipeline = scope.config.annotator
        params = AnnotateParams(pipeline=pipeline, pipeline_version=annotator_version(pipeline))
        given = {PASSAGES(): inputs[PASSAGES()], IDF_PASSAGES(): reference}
        inputs[ANNOTATIONS()] = draft.add(ANNOTATE, params, given, [ANNOTATIONS()])[ANNOTATIONS()]
    reading = {
        **scope.model.params,
        **({"add_bos": True} if scope.config.add_bos else {}),
        **scope.config.sink_settings,
        **({"change": RandomWeights(seed=scope.config.seed)} if control == RANDOM_WEIGHTS else {}),
    }
    params_of = [StrategyParam(id=spec.id, params=spec.resolve(spec.params_for(()))) for spec in scope.strategies]
    extraction = ExtractParams(
        **reading, include_bos=scope.config.include_bos, strategies=params_of, layers=scope.layers
    )
    roles = {Cell(spec.id, layer): VECTORS(spec.id, layer) for spec in scope.strategies for layer in scope.layers}
    made = draft.add(EXTRACT, extraction, inputs, roles.values())
    return {cell: made[role] for cell, role in roles.items()}


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


def _stored(label: str, table: pa.Table) -> LocalStep:
    """Return the step that stores a table, under a hash of its rows."""
    params = PassagesParams(concept="probing", split="probing", rows=digest(table.to_pylist(), 16))
    return LocalStep(STORED.key(TABLE(), params, {}), label, lambda: table, lambda: table.num_rows)


def _has_words(data: ProbingData) -> bool:
    return data.instances["word"].null_count < data.instances.num_rows
