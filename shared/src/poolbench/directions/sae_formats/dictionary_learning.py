"""dictionary_learning: `ae.pt`, read by torch's weights-only loader, and `config.json`."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.directions.sae_formats.converted import (
    Converted,
    matrix,
    read_json,
    required,
    row_norms,
    scalar,
    settings_of,
)
from poolbench.directions.torch_file import load_torch
from poolbench.errors import InputError, shown

_FILE, _CONFIG = "ae.pt", "config.json"
_COMPILED = "_orig_mod."  # before the names of a model that was compiled when it was saved
#: Parts of the names of sites that are not the residual stream.
_OTHER_SITES = ("mlp", "attn", "attention")

Tensors = Mapping[str, np.ndarray]
#: Architecture, tensors and further settings.
Parts = tuple[str, dict[str, np.ndarray], dict[str, Any]]


def read_dictionary(path: Path) -> Converted | None:
    """Return the autoencoder of a folder with `ae.pt` and `config.json`, or of that `ae.pt`.

    Features equal the output of `encode` of the autoencoder's class. Some classes multiply features by the norms of the
    decoder rows. For these classes, the decoder rows are unit vectors here. Only tensors are read from `ae.pt`, and an
    object of any other kind is refused.

    Raise InputError for damaged files, sites other than the residual stream, an unknown class, or features that depend
    on the batch.

    Reference: Marks et al. (2024), dictionary_learning.
    """
    file = path if path.name == _FILE else path / _FILE
    if not file.is_file():
        return None
    trainer = read_json(file.with_name(_CONFIG)).get("trainer")
    if not isinstance(trainer, dict):
        raise InputError(f"{_CONFIG} has no object 'trainer', which names class, layer and site")
    site, layer = str(trainer.get("submodule_name") or ""), trainer.get("layer")
    if any(part in site.lower() for part in _OTHER_SITES):
        raise InputError(f"the autoencoder reads {shown(site)}; only the residual stream between blocks is read here")
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, int)):
        raise InputError(f"layer of {_CONFIG} is {shown(layer)}; a whole number is needed")
    name = trainer.get("dict_class")
    if not isinstance(name, str) or name not in _CLASSES:
        raise InputError(f"dict_class {shown(name)} of {_CONFIG} is unknown; known: {', '.join(_CLASSES)}")
    architecture, tensors, more = _CLASSES[name](_tensors(file), trainer)
    return Converted.of(tensors, settings_of(architecture, layer) | more)


def _tensors(file: Path) -> dict[str, np.ndarray]:
    return {str(name).removeprefix(_COMPILED): tensor for name, tensor in load_torch(file).items()}


def _linear(tensors: Tensors, **biases: str) -> dict[str, np.ndarray]:
    """Return the encoder and decoder weights, transposed from torch's layout, and the biases under our names."""
    bias_tensors = dict(zip(biases, required(tensors, *biases.values()), strict=True))
    return {"W_enc": matrix(tensors, "encoder.weight").T, "W_dec": matrix(tensors, "decoder.weight").T, **bias_tensors}


def _relu(tensors: Tensors, _: Mapping[str, Any], *, bias: str, subtracts: bool) -> Parts:
    return "relu", _linear(tensors, b_dec=bias, b_enc="encoder.bias"), {"apply_b_dec_to_input": subtracts}


def _topk(tensors: Tensors, trainer: Mapping[str, Any]) -> Parts:
    k = int(tensors["k"]) if "k" in tensors else trainer.get("k")
    return "topk", _linear(tensors, b_dec="b_dec", b_enc="encoder.bias"), {"k": k, "apply_b_dec_to_input": True}


def _batchtopk(tensors: Tensors, trainer: Mapping[str, Any]) -> Parts:
    """Return the autoencoder with the threshold that was learned in training. Raise InputError without a threshold.

    With k features per batch instead, the features of a text would depend on the rest of its batch.
    """
    if "W_enc" in tensors:
        weights = {name: required(tensors, name)[0] for name in ("W_enc", "W_dec", "b_dec", "b_enc")}
    else:
        weights = _linear(tensors, b_dec="b_dec", b_enc="encoder.bias")
    threshold = float(tensors["threshold"]) if "threshold" in tensors else -1.0
    if not threshold >= 0:
        raise InputError(
            f"{trainer['dict_class']} has no threshold: its features depend on the batch that a text is in"
        )
    weights["threshold"] = scalar(threshold, len(weights["b_enc"]))
    return "batchtopk", weights, {"apply_b_dec_to_input": True}


def _jumprelu(tensors: Tensors, _: Mapping[str, Any]) -> Parts:
    """Return the autoencoder with decoder rows of unit norm. Features are multiplied by the norms, as in the class."""
    w_enc, w_dec = matrix(tensors, "W_enc"), matrix(tensors, "W_dec")
    b_enc, threshold, b_dec = required(tensors, "b_enc", "threshold", "b_dec")
    norms = row_norms(w_dec)
    weights = {"W_enc": w_enc * norms, "b_enc": b_enc * norms, "threshold": threshold * norms, "b_dec": b_dec}
    return "jumprelu", {**weights, "W_dec": w_dec / norms[:, None]}, {}


def _gated(tensors: Tensors, _: Mapping[str, Any]) -> Parts:
    """Return the autoencoder with decoder rows of unit norm. Features are multiplied by the norms, as in the class.

    The gate does not depend on the norms.
    """
    weights = _linear(tensors, b_dec="decoder_bias", b_gate="gate_bias", r_mag="r_mag", b_mag="mag_bias")
    norms = row_norms(weights["W_dec"])
    scaled = {"r_mag": weights["r_mag"] + np.log(norms), "b_mag": weights["b_mag"] * norms}
    return "gated", {**weights, **scaled, "W_dec": weights["W_dec"] / norms[:, None]}, {"apply_b_dec_to_input": True}


_CLASSES: Mapping[str, Callable[[Tensors, Mapping[str, Any]], Parts]] = {
    "AutoEncoder": partial(_relu, bias="bias", subtracts=True),
    "AutoEncoderNew": partial(_relu, bias="decoder.bias", subtracts=False),
    "AutoEncoderTopK": _topk,
    "BatchTopKSAE": _batchtopk,
    "MatryoshkaBatchTopKSAE": _batchtopk,
    "JumpReluAutoEncoder": _jumprelu,
    "GatedAutoEncoder": _gated,
}
