"""Where passages come from: the grammar, the real-text archives or a folder; and what identifies them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.config import RunConfig
from poolbench.corpora.io import read_concept
from poolbench.corpora.partition import PARTITION_VERSION
from poolbench.corpora.planted import PLANTED_REVISION, build_planted
from poolbench.errors import CorpusError

#: The source of a planted passage as a corpus file has it; inside a text its quotes would be escaped.
_PLANTED = re.compile(rb'"source":\s*"planted-')


def dataset_identity(config: RunConfig) -> dict[str, Any]:
    """Source and revision of the passages: what keys and result rows say of the dataset."""
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
    """How many passages of each split the budget asks for, as ``num_<split>``."""
    budget = config.budget
    return {"num_train": budget.num_train, "num_test": budget.num_test, "num_scorer": budget.num_scorer}


def dataset_revision(identity: Mapping[str, Any]) -> str:
    """What result rows say of a ``dataset_identity``: other passages, by window or seed, are another dataset."""
    parts = [str(identity["revision"])]
    if identity.get("window"):
        parts.append("window " + "-".join(map(str, identity["window"])))
    if identity.get("seed"):
        parts.append(f"seed {identity['seed']}")
    return ", ".join(parts)


def absent_concepts(config: RunConfig, concepts: Sequence[str]) -> dict[str, str]:
    """The concepts that the corpus cannot provide, with the reason.

    The grammar has all of them. How many passages the archives hold shows only when they are read.
    """
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
    """All splits of one concept; cached because several local steps want the same table."""
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
    """``planted`` where the grammar made a folder's passages, else ``folder``.

    Args:
        folder: The corpus folder.
        digest: Its ``folder_digest``: other contents are read again.

    Raises:
        CorpusError: Where some are planted and some are not: planted ones are diagnostics, and one run ranks them all.
    """
    contents = [file.read_bytes() for file in sorted(folder.rglob("*.jsonl"))]
    records = sum(1 for content in contents for line in content.split(b"\n") if line.strip())
    planted = sum(len(_PLANTED.findall(content)) for content in contents)
    if planted == 0:
        return "folder"
    if planted < records:
        told = f"{planted} of {records} passages are planted"
        raise CorpusError(
            f"corpus {folder}: {told}; they are never ranked with real ones, give them a folder of their own"
        )
    return "planted"


def folder_digest(folder: Path) -> str:
    """Hash of the names and bytes of a corpus folder's JSONL files.

    Raises:
        CorpusError: If the folder does not exist or holds no JSONL file.
    """
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise CorpusError(
            f"corpus {folder}: no such folder, or no .jsonl file in it; use 'planted', 'real' or a folder"
        )
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]
