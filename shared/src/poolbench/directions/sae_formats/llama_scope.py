"""Llama Scope: `hyperparams.json` with transposed weights, one threshold, and normalisation by a norm of the data."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.directions.sae_formats.converted import (
    Converted,
    matrix,
    read_json,
    read_tensors,
    required,
    residual_layer,
    row_norms,
    scalar,
    settings_of,
)
from poolbench.errors import InputError, shown

_CONFIG, _WEIGHTS = "hyperparams.json", ("checkpoints/final.safetensors", "sae_weights.safetensors")

Tensors = Mapping[str, np.ndarray]


def read_llama_scope(path: Path) -> Converted | None:
    """Return the autoencoder of a folder of Llama Scope, or of its `hyperparams.json` or weights.

    Training multiplied x by f = sqrt(d_in) / (mean norm of the data). The sparse quantity was the feature z_j times the
    norm n_j of its decoder row. The weights here take x at its own scale and give features a_j = n_j z_j / f, so that
    decoder rows have unit norm. The threshold applies to a_j. In the published settings of layers 8 and 19, the
    threshold is .031 to .032 of the mean norm, so it follows the scale of the data. (SAELens compares the threshold
    with z_j, where it cuts less.)

    Raise InputError for damaged files, other sites, and settings that cannot be folded into weights.

    Reference: He et al. (2024), Llama Scope, and the inference mode of Language-Model-SAEs.
    """
    folders = (path,) if path.is_dir() else (path.parent, path.parent.parent)
    folder = next((folder for folder in folders if (folder / _CONFIG).is_file()), None)
    if folder is None:
        return None
    settings = read_json(folder / _CONFIG)
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise InputError(f"{_CONFIG} has no weights beside it; {' or '.join(_WEIGHTS)} is needed")
    return _convert(settings, read_tensors(weights.read_bytes()))


def _convert(settings: Mapping[str, Any], tensors: Tensors) -> Converted:
    read, written = settings.get("hook_point_in"), settings.get("hook_point_out")
    layer = residual_layer(read)
    if written != read:
        raise InputError(f"the autoencoder reads {shown(read)} and writes {shown(written)}; both must be one site")
    if settings.get("use_glu_encoder"):
        raise InputError("the encoder is gated by a second matrix (use_glu_encoder), which is not read here")
    w_enc, w_dec = matrix(tensors, "encoder.weight").T, matrix(tensors, "decoder.weight").T
    (b_enc,) = required(tensors, "encoder.bias")
    factor = _factor(settings, len(w_enc))
    norms = row_norms(w_dec) if settings.get("sparsity_include_decoder_norm") else scalar(1, len(w_dec))
    if norms.shape != b_enc.shape or w_enc.shape[1:] != norms.shape:
        raise InputError(
            f"encoder {w_enc.T.shape}, decoder {w_dec.T.shape} and bias {b_enc.shape} do not fit one another"
        )
    b_dec = required(tensors, "decoder.bias")[0] if settings.get("use_decoder_bias", True) else scalar(0, len(w_enc))
    weights = {
        "W_enc": w_enc * norms,
        "b_enc": b_enc * norms / factor,
        "W_dec": w_dec / norms[:, None],
        "b_dec": b_dec / factor,
    }
    architecture, more = _activation(settings)
    if architecture == "jumprelu":
        weights["threshold"] = scalar(more.pop("threshold"), len(norms))
    subtracts = bool(settings.get("apply_decoder_bias_to_pre_encoder"))
    return Converted.of(weights, settings_of(architecture, layer, **more) | {"apply_b_dec_to_input": subtracts})


def _factor(settings: Mapping[str, Any], width: int) -> float:
    """Return the factor by which training scaled the states. Raise InputError if the settings do not give a factor."""
    kind = settings.get("norm_activation", "dataset-wise")
    if kind == "inference":  # folded in already
        return 1.0
    if kind != "dataset-wise":
        raise InputError(
            f"norm_activation {shown(kind)} scales each vector on its own; dataset-wise or inference is read"
        )
    norms = settings.get("dataset_average_activation_norm")
    sides = [norms.get(side) for side in ("in", "out")] if isinstance(norms, dict) else [norms]
    if not isinstance(sides[0], int | float) or not 0 < sides[0] < math.inf or sides[-1] != sides[0]:
        raise InputError(f"dataset_average_activation_norm is {shown(norms)}; the same norm for in and out is needed")
    return math.sqrt(width) / sides[0]


def _activation(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the architecture and its settings. Raise InputError for an unknown activation.

    A topk autoencoder with a threshold is used as jumprelu, as its publishers do.
    """
    name, threshold = str(settings.get("act_fn", "")).lower(), settings.get("jump_relu_threshold")
    has_threshold = isinstance(threshold, int | float) and not isinstance(threshold, bool) and threshold > 0
    if name in ("jumprelu", "topk") and has_threshold:
        return "jumprelu", {"threshold": threshold}
    if name == "topk":
        return "topk", {"k": settings.get("top_k")}
    if name == "relu":
        return "relu", {}
    raise InputError(f"act_fn {shown(name)} with jump_relu_threshold {shown(threshold)} is not read here")
