"""Stage of the vectors of probing sets: distinct passages in shards, read once for all sets of a run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from poolbench.contracts.keys import digest
from poolbench.pooling.registry import StrategySpec
from poolbench.steps import prober as steps
from poolbench.steps.base import Keys, StrategyParam
from poolbench.steps.extractor import ANNOTATIONS, EXTRACT, PASSAGES, VECTORS, ExtractParams, RandomWeights
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, AnnotateParams
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData, shared_passages, without_order
from poolbench_driver.config import RANDOM_WEIGHTS, WORD_ORDER, Control, CorpusSource, ReadingConfig
from poolbench_driver.corpora.sources import stored_rows
from poolbench_driver.models import ModelInfo, annotator_version
from poolbench_driver.stages.stage import Draft, PlanFacts

#: Passages of one extraction.
SHARD = 2000
#: Expected tokens of a text, for estimates.
_TEXT_TOKENS = 20.0


def facts_of_sets(
    model: ModelInfo, source: CorpusSource, data: Mapping[str, ProbingData], notes: tuple[str, ...]
) -> PlanFacts:
    """Return what the frame reads of a plan whose texts are probing sets."""
    revision = digest({name: set_data.instances.to_pylist() for name, set_data in data.items()}, 16)
    return PlanFacts(model, source.kind, revision, "probing", passage_tokens=_TEXT_TOKENS, notes=notes)


@dataclass(frozen=True)
class SetVectors:
    """Keys of one set: its instances, and its vectors at each cell."""

    instances: str
    shards: Mapping[Cell, Mapping[int, str]]  # vectors as they are read, with those of other sets, by shard
    alone: Mapping[Cell, str]  # what they would be if the set were read by itself

    def inputs(self, cells: Iterable[Cell]) -> dict[str, str]:
        """Return the inputs of a task that probes some cells."""
        vectors = {steps.TASK_VECTORS(*cell, f"{n}"): key for cell in cells for n, key in self.shards[cell].items()}
        return {steps.INSTANCES(): self.instances, **vectors}

    def identity(self, cells: Iterable[Cell]) -> dict[str, str]:
        """Return the inputs that keys are computed from. Unlike shards, they do not depend on the run's other sets."""
        return {steps.INSTANCES(): self.instances} | {
            steps.TASK_VECTORS(*cell, "0"): self.alone[cell] for cell in cells
        }


def read_under(data: Mapping[str, ProbingData], control: Control | None, seed: int) -> Mapping[str, ProbingData]:
    """Return the sets as they are read under a control."""
    if control != WORD_ORDER:
        return data
    return {name: without_order(set_data, seed) for name, set_data in data.items()}


def reading_params(
    config: ReadingConfig,
    model: ModelInfo,
    strategies: Iterable[StrategySpec],
    layers: Iterable[int],
    control: Control | None,
) -> ExtractParams:
    """Return how a model reads the passages of sets, under a control or none."""
    reading: dict[str, Any] = {
        **model.params,
        **({"add_bos": True} if config.add_bos else {}),
        **config.sink_settings,
        **({"change": RandomWeights(seed=config.seed)} if control == RANDOM_WEIGHTS else {}),
    }
    return ExtractParams(
        **reading,
        include_bos=config.include_bos,
        strategies=[StrategyParam(id=spec.id, params=spec.keyed_params(spec.params_for(()))) for spec in strategies],
        layers=list(layers),
    )


def plan_set_vectors(
    draft: Draft, data: Mapping[str, ProbingData], params: ExtractParams, annotator: str | None
) -> dict[str, SetVectors]:
    """Plan the reading of all passages of some sets. Return the keys by set.

    Document frequencies are counted in all texts, without their labels. Train texts alone cannot be used, because a
    text can be in several sets and, under other seeds, in other splits. A shard cannot be used, because its content
    depends on which sets are read together.

    Args:
        annotator: spaCy pipeline that annotates passages, or None if no strategy reads annotations.
    """
    shared = shared_passages(data.values())
    annotate, reference = None, ""
    if annotator is not None:
        texts = sorted(set(shared["text"].to_pylist()))
        table = pa.table({"text": texts, "split": ["train"] * len(texts)})
        reference = draft.add_local(stored_rows("texts of the run", table, "probing"))
        annotate = AnnotateParams(pipeline=annotator, pipeline_version=annotator_version(annotator))
    cells = [Cell(strategy.id, layer) for strategy in params.strategies for layer in params.layers]

    def read(passages: pa.Table, draft: Draft) -> Keys:
        inputs = {PASSAGES(): draft.add_local(stored_rows("passages", passages, "probing"))}
        if annotate is not None:
            inputs |= draft.add(ANNOTATE, annotate, inputs | {IDF_PASSAGES(): reference}, [ANNOTATIONS()])
        return draft.add(EXTRACT, params, inputs, [VECTORS(*cell) for cell in cells])

    shards, place = list[Keys](), dict[str, int]()
    for number, passages in enumerate(_shards(shared)):
        shards.append(read(passages, draft))
        place |= dict.fromkeys(passages["passage_id"].to_pylist(), number)
    vectors = {}
    for name, set_data in data.items():
        instances = draft.add_local(stored_rows(f"instances of {name}", set_data.instances, "probing"))
        used = sorted({place[row] for row in set_data.passages["passage_id"].to_pylist()})
        alone = read(shared_passages([set_data]), Draft())
        vectors[name] = SetVectors(
            instances,
            {cell: {number: shards[number][VECTORS(*cell)] for number in used} for cell in cells},
            {cell: alone[VECTORS(*cell)] for cell in cells},
        )
    return vectors


def _shards(passages: pa.Table) -> Iterator[pa.Table]:
    """Yield portions of passages. All spans of a text are in one portion, so that the text is read once."""
    portion: list[dict[str, object]] = []
    for _, spans in groupby(passages.to_pylist(), key=lambda row: row["text"]):
        portion += spans
        if len(portion) >= SHARD:
            yield pa.Table.from_pylist(portion, passages.schema)
            portion = []
    if portion:
        yield pa.Table.from_pylist(portion, passages.schema)
