"""Sparse autoencoders read from safetensors, and the encoding of vectors with them.

An artifact holds one `.safetensors` file and a `cfg.json` that describes the tensors: `W_enc` [d_in, d_sae], `W_dec`
[d_sae, d_in], `b_dec` [d_in], and those of the architecture. So does a folder, or it has another format
(`sae_formats`), which is converted.

| architecture | tensors | feature j of x |
|---|---|---|
| relu (standard) | b_enc | max(0, z_j), with z = x W_enc + b_enc |
| jumprelu | b_enc, threshold | max(0, z_j) where z_j > threshold_j, else 0 |
| topk | b_enc; `k` in the configuration | max(0, z_j) for the k largest z of the vector, else 0 |
| batchtopk | b_enc, threshold | as jumprelu: k per batch is for training; no feature depends on its neighbours |
| gated | b_gate, r_mag, b_mag | max(0, x W_enc e^r_mag + b_mag) where x W_enc + b_gate > 0, else 0 |

`apply_b_dec_to_input`, which is the default, subtracts `b_dec` from x first. Vectors are not rescaled: a configuration
that asks for normalised activations is refused, not ignored.

Reference: Cunningham et al. (2023) and Bricken et al. (2023) (relu); Rajamanoharan et al. (2024a, gated; 2024b,
jumprelu); Gao et al. (2024, topk); Bussmann et al. (2024, batchtopk).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from poolbench.directions.sae_files import (
    ARCHITECTURES,
    CONFIG_FILE,
    WEIGHTS_FILE,
    architecture_of,
    k_of,
    read_config,
    read_folder,
)
from poolbench.directions.sae_formats.converted import layer_of, read_tensors
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status

#: Largest number of feature values that are held at once while encoding.
_BLOCK_VALUES = 1 << 26


@dataclass(frozen=True)
class SparseAutoencoder:
    """A sparse autoencoder: an encoder and a decoder of the vectors at a layer."""

    id: str  # hash of weights and configuration
    architecture: str  # one of `ARCHITECTURES`
    w_enc: np.ndarray  # [d_in, d_sae]
    w_dec: np.ndarray  # [d_sae, d_in]
    b_dec: np.ndarray  # [d_in]
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)  # other tensors by name, [d_sae] each
    k: int | None = None  # features that a vector keeps, of topk
    apply_b_dec_to_input: bool = False  # whether `b_dec` is subtracted before encoding
    layer: int | None = None  # layer that it was trained on; None if its configuration names none

    @classmethod
    def from_folder(cls, path: Path) -> tuple[Self, dict[str, bytes]]:
        """Load the autoencoder from a folder or file of any known format.

        Also return its files in the form of an artifact.

        Raise InputError, with the path, if anything is wrong or missing.
        """
        files = read_folder(path)
        try:
            return cls.from_bytes(files[WEIGHTS_FILE], files[CONFIG_FILE]), files
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def from_bytes(cls, weights: bytes, config: bytes) -> Self:
        """Load an autoencoder from a safetensors file and its configuration.

        Raise InputError if anything is wrong or missing.
        """
        settings = read_config(config)
        architecture = architecture_of(settings)
        tensors = read_tensors(weights)
        names = ("W_enc", "W_dec", "b_dec", *ARCHITECTURES[architecture])
        missing = [name for name in names if name not in tensors]
        if (tensors.get("scaling_factor", np.ones(1)) != 1).any():
            raise InputError("the autoencoder scales its features (scaling_factor); fold the scale into its weights")
        if missing:
            raise InputError(f"the {architecture} autoencoder lacks {', '.join(missing)}; it has {', '.join(tensors)}")
        k = k_of(settings) if architecture == "topk" else None
        autoencoder = cls(
            id=hashlib.sha256(hashlib.sha256(weights).digest() + config).hexdigest()[:16],
            architecture=architecture,
            w_enc=tensors["W_enc"],
            w_dec=tensors["W_dec"],
            b_dec=tensors["b_dec"],
            vectors={name: tensors[name] for name in ARCHITECTURES[architecture]},
            k=k,
            apply_b_dec_to_input=bool(settings["apply_b_dec_to_input"]),
            layer=layer_of(settings),
        )
        autoencoder._require_shapes()
        return autoencoder

    @property
    def width(self) -> int:
        """Return d_in, the width of the vectors that the autoencoder reads."""
        return int(self.w_enc.shape[0])

    @property
    def num_features(self) -> int:
        """Return the number d_sae of features."""
        return int(self.w_enc.shape[1])

    def encode(self, vectors_nD: np.ndarray) -> np.ndarray:
        """Return the features of vectors, float32 [n, d_sae]. Each row is encoded independently of the other rows.

        Raise CellError `failed` if the vectors have another width than the autoencoder.
        """
        if vectors_nD.shape[1] != self.width:
            reason = f"the autoencoder {self.id} reads width {self.width}; the vectors have {vectors_nD.shape[1]}"
            raise CellError(Status.FAILED, reason)
        step = max(1, _BLOCK_VALUES // self.num_features)
        blocks = [self._encode(vectors_nD[start : start + step]) for start in range(0, len(vectors_nD), step)]
        return np.concatenate(blocks) if blocks else np.zeros((0, self.num_features), np.float32)

    def decode(self, features_nF: np.ndarray) -> np.ndarray:
        """Return the vectors [n, d_in] that features stand for."""
        return np.asarray(features_nF @ self.w_dec + self.b_dec)

    def direction_of(self, features: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the decoder rows of the given features, float64 [d_in]."""
        return np.asarray(weights @ self.w_dec[features].astype(np.float64))

    def _encode(self, x_nD: np.ndarray) -> np.ndarray:
        x_nD = x_nD.astype(np.float32) - (self.b_dec if self.apply_b_dec_to_input else np.float32(0))
        projected_nF = x_nD @ self.w_enc
        if self.architecture == "gated":
            magnitude = projected_nF * np.exp(self.vectors["r_mag"]) + self.vectors["b_mag"]
            return np.where(projected_nF + self.vectors["b_gate"] > 0, np.maximum(magnitude, 0), np.float32(0))
        z_nF = projected_nF + self.vectors["b_enc"]
        if self.architecture == "topk":
            features_nF = np.maximum(z_nF, 0)
            columns_nk = np.argsort(-features_nF, axis=1, kind="stable")[:, : self.k]  # of equals the first
            sparse = np.zeros_like(features_nF)
            np.put_along_axis(sparse, columns_nk, np.take_along_axis(features_nF, columns_nk, axis=1), axis=1)
            return sparse
        if "threshold" in self.vectors:
            return np.where(z_nF > self.vectors["threshold"], np.maximum(z_nF, 0), np.float32(0))
        return np.maximum(z_nF, 0)

    def _require_shapes(self) -> None:
        if self.w_enc.ndim != 2 or not self.w_enc.size:
            raise InputError(f"W_enc has shape {self.w_enc.shape}; two dimensions above 0 are needed")
        d_in, d_sae = self.w_enc.shape
        expected = {"W_dec": (self.w_dec, (d_sae, d_in)), "b_dec": (self.b_dec, (d_in,))}
        expected |= {name: (tensor, (d_sae,)) for name, tensor in self.vectors.items()}
        for name, (tensor, shape) in expected.items():
            if tensor.shape != shape:
                raise InputError(f"{name} has shape {tensor.shape}; with W_enc {self.w_enc.shape} it must be {shape}")
        if self.k is not None and not 1 <= self.k <= d_sae:
            raise InputError(f"k is {self.k}; it must lie between 1 and the {d_sae} features")
