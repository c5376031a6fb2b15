"""What the run of an official table needs, and which of it this machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from poolbench.config import MODEL_PRESETS
from poolbench.errors import ConfigError
from poolbench.runtime.settings import ClusterSettings
from poolbench.suites.official import OfficialModel

#: The driver of NVIDIA makes this file.
GPU_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class Need:
    """One thing that a run needs."""

    what: str
    found: bool
    how: str  # where it was looked for, or how to get it


def needs_of(model: OfficialModel, corpus: str) -> list[Need]:
    """Return what a run of a model needs, in the order in which it would fail."""
    reference = MODEL_PRESETS[model.preset]
    weights = hub_cache() / ("models--" + reference.source.replace("/", "--"))
    gated = " (gated: accept its licence there first)" if "gated" in reference.summary else ""
    return [
        Need("cluster", _has_cluster(), "make cluster-up PROFILE=gpu"),
        Need("GPU on this machine", GPU_DEVICE.exists(), "a cluster on other machines may have one"),
        Need(f"weights of {reference.source}", weights.is_dir(), f"from the Hugging Face hub into its cache{gated}"),
        Need(
            f"published corpus in {corpus}",
            Path(corpus).is_dir(),
            "dataset nips234678/poolbench, then `poolbench-driver corpus import`; it lacks toxicity and depression",
        ),
    ]


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
