"""Local steps: passages and prompts that the driver itself puts into the object store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import Concept
from poolbench.config import RunConfig
from poolbench.corpora.openings import CALIBRATION_SET, load_calibration, load_openings
from poolbench.steps.local import PASSAGES, PROMPTS, TABLE, PassagesParams, PromptsParams
from poolbench_driver.corpora.sources import concept_table, dataset_identity, split_sizes


@dataclass(frozen=True)
class LocalStep:
    """An artifact the driver builds itself: its key and how to make the table, or its files by name."""

    key: str
    label: str
    build: Callable[[], pa.Table | dict[str, bytes]]


def passages_step(config: RunConfig, concept: Concept, split: str) -> LocalStep:
    """The passages of one concept and split."""
    sizes = split_sizes(config)
    params = PassagesParams.model_validate({"concept": concept.id, "split": split, **sizes, **dataset_identity(config)})
    key = PASSAGES.key(TABLE(), params, {}, restricted=concept.sensitive)

    def build() -> pa.Table:
        table = concept_table(config, concept.id)
        return at_most(table.filter(pc.equal(table["split"], split)), sizes[f"num_{split}"])

    return LocalStep(key, f"passages {concept.id}/{split}", build)


def at_most(passages: pa.Table, size: int) -> pa.Table:
    """At most ``size`` passages, half of each class, pairs whole; which ones depends on their ids alone."""
    if passages.num_rows <= size:
        return passages
    rows = passages.select(["passage_id", "pair_id", "label"]).to_pylist()
    order = sorted(range(len(rows)), key=lambda i: (_rank(rows[i]["pair_id"] or rows[i]["passage_id"]), i))
    kept: list[int] = []
    for label in (0, 1):
        kept += [i for i in order if rows[i]["label"] == label][: size // 2]
    return passages.take(sorted(kept))


def _rank(name: str) -> str:
    return hashlib.sha256(f"at-most:{name}".encode()).hexdigest()


def openings_step(name: str, count: int) -> LocalStep:
    """The first ``count`` openings of a named set; a set never changes under its name.

    Raises:
        UnknownNameError, CorpusError: There is no such set, or it has fewer; told before anything runs.
    """
    key, table = PROMPTS.key(TABLE(), PromptsParams(openings=name, count=count), {}), load_openings(name, count)
    return LocalStep(key, f"openings {name}", lambda: table)


def calibration_step() -> LocalStep:
    """The fixed texts whose residual norm is the unit of strength."""
    key = PROMPTS.key(TABLE(), PromptsParams(calibration=CALIBRATION_SET), {})
    return LocalStep(key, f"calibration texts {CALIBRATION_SET}", load_calibration)
