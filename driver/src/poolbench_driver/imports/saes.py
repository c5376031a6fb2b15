"""Sparse autoencoders of a run: read from a folder or found in the object store, keyed by their contents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poolbench.directions.sae import SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, architecture_of, read_config
from poolbench.errors import ConfigError, DamagedError
from poolbench.steps.local import IMPORT_SAE, TABLE, SaeParams
from poolbench.storage import Artifacts
from poolbench_driver.config import ConceptsConfig, SaeConfig
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.models import ModelInfo


@dataclass(frozen=True)
class SaeInput:
    """The autoencoder of one layer."""

    key: str
    num_features: int  # number of features that C5 uses
    step: LocalStep | None = None  # step that stores it; None if it is stored already


def sae_inputs(config: ConceptsConfig, model: ModelInfo, artifacts: Artifacts) -> dict[int, SaeInput]:
    """Return the autoencoders of a run by layer; raise ConfigError or InputError for one that does not fit."""
    layers, sae_by_layer = model.layers(config.layers), dict[int, SaeInput]()
    for sae in config.saes:
        layer = model.layer(sae.layer)
        if layer not in layers or layer in sae_by_layer:
            raise ConfigError(f"saes: layer {layer} must be one of {layers}, once; got {sae.layer} for {sae.path}")
        sae_by_layer[layer] = (
            _stored(sae, artifacts) if sae.path.startswith(f"{IMPORT_SAE.kind}.") else _read(sae, model.width)
        )
    return sae_by_layer


def _stored(sae: SaeConfig, artifacts: Artifacts) -> SaeInput:
    if not artifacts.exists(sae.path):
        raise ConfigError(f"saes: the object store has no {sae.path}; give the folder that the autoencoder lies in")
    try:
        architecture_of(read_config(artifacts.read(sae.path, CONFIG_FILE)))
    except DamagedError as error:
        remedy = "name the folder that the autoencoder lies in as `path`, and the run imports it again"
        raise DamagedError(sae.path, error.what, remedy) from None
    return SaeInput(sae.path, sae.num_features)


def _read(sae: SaeConfig, width: int) -> SaeInput:
    autoencoder, files = SparseAutoencoder.from_folder(Path(sae.path).expanduser())
    if autoencoder.width != width:
        raise ConfigError(f"saes: {sae.path} reads width {autoencoder.width}; the model's states have {width}")
    step = sae_step(f"autoencoder {Path(sae.path).name}", files, lambda: files)
    return SaeInput(step.key, sae.num_features, step)


def sae_step(label: str, files: Mapping[str, bytes], read: Callable[[], dict[str, bytes]]) -> LocalStep:
    """Return the step that stores an autoencoder, under the hashes of its files; it reads them again."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return LocalStep(IMPORT_SAE.key(TABLE(), SaeParams(files=digests), {}), label, read)
