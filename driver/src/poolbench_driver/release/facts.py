"""Where a release comes from: the facts of its manifest, and those of its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench_driver.config import ReadingConfig, RunConfig
from poolbench_driver.corpora.sources import OWN
from poolbench_driver.records import RunFolder


def release_facts(
    kind: str, folder: RunFolder, model: str, revision: str | None, licence: str, command: str
) -> dict[str, Any]:
    """Return the fields of the manifest that say what a release is and where it comes from."""
    return {
        "kind": kind,
        "version": 1,
        "run_id": folder.id,
        "config_hash": folder.config().config_hash(),
        "code_version": __version__,
        "model": model,
        "model_revision": revision,
        "licence": licence,
        "command": command,
    }


def origin(model: str, config: RunConfig, command: str, licence: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of a card: model, those of its kind, passages, configuration, command and licence."""
    return {
        "model": model,
        **own,
        "passages": passages_source(config),
        "configuration": config.config_hash(),
        "made by": f"PoolBench {__version__}, `{command}`",
        "licence": licence,
    }


def passages_source(config: RunConfig) -> str:
    """Return where passages come from; the setting says it only of concepts that bring none."""
    has_corpus = [bool(CONCEPTS.get(name).corpus) for name in config.concept_ids]
    source = config.corpus.source if isinstance(config, ReadingConfig) else config.data_name
    return OWN if has_corpus and all(has_corpus) else f"{source}+{OWN}" if any(has_corpus) else source
