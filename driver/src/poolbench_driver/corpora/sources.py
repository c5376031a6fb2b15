"""Sources of passages (the grammar, the real-text archives or a folder), and the local steps that store them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import Concept
from poolbench.config import RunConfig
from poolbench.corpora.io import read_concept
from poolbench.corpora.openings import CALIBRATION_SET, load_calibration, load_openings
from poolbench.corpora.partition import PARTITION_VERSION
from poolbench.corpora.planted import PLANTED_REVISION, build_planted
from poolbench.errors import CorpusError
from poolbench.steps.local import PASSAGES, PROMPTS, TABLE, PassagesParams, PromptsParams

#: The source of a planted passage as a corpus file has it; inside a text its quotes would be escaped.
_PLANTED = re.compile(rb'"source":\s*"planted-')


def dataset_identity(config: RunConfig) -> dict[str, Any]:
    """Return source and revision of the passages, as keys and result rows hold them."""
    corpus = config.corpus
    identity: dict[str, Any] = {"source": corpus.source, "partition": PARTITION_VERSION}
    if corpus.source == "planted":
        identity["revision"] = PLANTED_REVISION
    elif corpus.source == "real":
        from poolbench.corpora.real import REAL_REVISION

        identity["revision"] = REAL_REVISION
    else:
        revision = folder_digest(Path(corpus.source))
        return {"source": folder_origin(Path(corpus.source), revision), "revision": revision}
    return identity | {"window": list(corpus.window) if corpus.window else None, "seed": corpus.seed}


def split_sizes(config: RunConfig) -> dict[str, int]:
    """Return the budget's passages of each split, as `num_<split>`."""
    budget = config.budget
    return {"num_train": budget.num_train, "num_test": budget.num_test, "num_scorer": budget.num_scorer}


def dataset_revision(identity: Mapping[str, Any]) -> str:
    """Return the revision in result rows: other passages, by window or seed, are another dataset."""
    parts = [str(identity["revision"])]
    if identity.get("window"):
        parts.append("window " + "-".join(map(str, identity["window"])))
    if identity.get("seed"):
        parts.append(f"seed {identity['seed']}")
    return ", ".join(parts)


def absent_concepts(config: RunConfig, concepts: Sequence[str]) -> dict[str, str]:
    """Return the concepts that the corpus cannot provide, with the reason; archives must be read to find out."""
    source = config.corpus.source
    if source == "planted":
        return {}
    if source != "real":
        return {name: f"{source} has no corpus of {name}" for name in concepts if not (Path(source) / name).is_dir()}
    absent = {}
    for name in concepts:
        try:
            concept_table(config, name)
        except CorpusError as error:
            absent[name] = str(error)
    return absent


@lru_cache(maxsize=32)
def concept_table(config: RunConfig, concept: str) -> pa.Table:
    """Return all splits of one concept; cached because several local steps use the same table."""
    corpus = config.corpus
    settings: dict[str, Any] = {**split_sizes(config), "seed": corpus.seed}
    if corpus.window:
        settings["window"] = corpus.window
    if corpus.source == "planted":
        return build_planted(concept, **settings)
    if corpus.source == "real":
        from poolbench.corpora.real import build_real

        return build_real(concept, **settings)
    return read_concept(Path(corpus.source), concept)


@lru_cache(maxsize=32)
def folder_origin(folder: Path, digest: str) -> str:
    """Return `planted` where the grammar made a folder's passages, else `folder`.

    The digest is part of the cache key, so changed contents are read again.

    Raises:
        CorpusError: Where only some are planted: planted passages are diagnostics, and one run ranks them all.
    """
    contents = [file.read_bytes() for file in sorted(folder.rglob("*.jsonl"))]
    records = sum(1 for content in contents for line in content.split(b"\n") if line.strip())
    planted = sum(len(_PLANTED.findall(content)) for content in contents)
    if planted == 0:
        return "folder"
    if planted < records:
        mixed = f"{planted} of {records} passages are planted"
        raise CorpusError(
            f"corpus {folder}: {mixed}; they are never ranked with real ones, give them a folder of their own"
        )
    return "planted"


def folder_digest(folder: Path) -> str:
    """Return a hash of the names and bytes of a folder's JSONL files; raise CorpusError if it has none."""
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise CorpusError(
            f"corpus {folder}: no such folder, or no .jsonl file in it; use 'planted', 'real' or a folder"
        )
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


@dataclass(frozen=True)
class LocalStep:
    """An artifact that the driver builds itself: its key, and how to make the table or its files by name."""

    key: str
    label: str
    build: Callable[[], pa.Table | dict[str, bytes]]
    num_rows: int = 0  # at most so many, for estimates; 0 where there are none or the number is not known before


def passages_step(config: RunConfig, concept: Concept, split: str) -> LocalStep:
    """Return the passages of one concept and split."""
    sizes = split_sizes(config)
    params = PassagesParams.model_validate({"concept": concept.id, "split": split, **sizes, **dataset_identity(config)})
    key = PASSAGES.key(TABLE(), params, {}, restricted=concept.sensitive)

    def build() -> pa.Table:
        table = concept_table(config, concept.id)
        return at_most(table.filter(pc.equal(table["split"], split)), sizes[f"num_{split}"])

    return LocalStep(key, f"passages {concept.id}/{split}", build, sizes[f"num_{split}"])


def at_most(passages: pa.Table, size: int) -> pa.Table:
    """Return at most `size` passages, half of each class, pairs whole; the choice depends on their ids alone."""
    if passages.num_rows <= size:
        return passages
    rows = passages.select(["passage_id", "pair_id", "label"]).to_pylist()
    names = [row["pair_id"] or row["passage_id"] for row in rows]
    ranks = [hashlib.sha256(f"at-most:{name}".encode()).hexdigest() for name in names]
    order = sorted(range(len(rows)), key=lambda i: (ranks[i], i))
    kept: list[int] = []
    for label in (0, 1):
        kept += [i for i in order if rows[i]["label"] == label][: size // 2]
    return passages.take(sorted(kept))


def openings_step(name: str, count: int) -> LocalStep:
    """Return the first `count` openings of a named set; raise UnknownNameError or CorpusError if it has fewer."""
    key, table = PROMPTS.key(TABLE(), PromptsParams(openings=name, count=count), {}), load_openings(name, count)
    return LocalStep(key, f"openings {name}", lambda: table, table.num_rows)


def calibration_step() -> LocalStep:
    """Return the fixed texts whose residual norm is the unit of strength."""
    key = PROMPTS.key(TABLE(), PromptsParams(calibration=CALIBRATION_SET), {})
    return LocalStep(key, f"calibration texts {CALIBRATION_SET}", load_calibration, load_calibration().num_rows)
