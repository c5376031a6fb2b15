"""What the run of an official table needs, and which of it this machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from poolbench.config import MODEL_PRESETS, PUBLISHED_CORPUS, RunConfig, local_folder
from poolbench.errors import ConfigError
from poolbench.runtime.settings import ClusterSettings
from poolbench.suites.official import OfficialModel

#: The driver of NVIDIA makes this file.
GPU_DEVICE = Path("/dev/nvidiactl")

#: Makes the published corpus.
IMPORT_PUBLISHED = f"poolbench-driver corpus import hf:nips234678/poolbench {PUBLISHED_CORPUS}"
#: Sources of passages that are no folder.
NO_FOLDER = ("planted", "real")


@dataclass(frozen=True)
class Need:
    """One thing that a run needs."""

    what: str
    found: bool
    how: str  # where it was looked for, or how to get it
    stops: bool = False  # whether a run surely cannot start without it


def needs_of(model: OfficialModel, config: RunConfig) -> list[Need]:
    """Return what a run of a model needs, in the order in which it would fail."""
    corpus, scores = config.corpus.source, bool({"d2", "d3"} & set(config.metrics))
    reference = MODEL_PRESETS[model.preset]
    gated = " (gated: accept its licence there first)" if "gated" in reference.summary else ""
    return [
        Need("cluster", _has_cluster(), "make cluster-up PROFILE=gpu", stops=True),
        Need("GPU on this machine", GPU_DEVICE.exists(), "a cluster on other machines may have one"),
        *_weights(reference.source, f"from the Hugging Face hub into its cache{gated}"),
        *([] if corpus in NO_FOLDER else [_corpus(corpus)]),
        *(_weights(config.scorer_base, "--scorers minilm needs none") if scores else []),
    ]


def _weights(name: str, how: str) -> list[Need]:
    """Return the need of a model of the hub; none for one that ships or lies in a folder."""
    if name == "minilm" or name.startswith("asset:") or local_folder(name) is not None:
        return []
    return [Need(f"weights of {name}", (hub_cache() / ("models--" + name.replace("/", "--"))).is_dir(), how)]


def _corpus(folder: str) -> Need:
    how = f"`{IMPORT_PUBLISHED}`; it lacks toxicity and depression"
    return Need(f"published corpus in {folder}", Path(folder).is_dir(), how, stops=True)


def _has_cluster() -> bool:
    try:
        ClusterSettings.load()
    except ConfigError:
        return False
    return True


def hub_cache() -> Path:
    """Return the folder in which the Hugging Face libraries keep models."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
