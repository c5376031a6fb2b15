"""Quality of an autoencoder on held-out texts, by the definitions of SAEBench (Karvonen et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from recipes.saes.states import Reader
from torch import Tensor

from poolbench.directions.sae import SparseAutoencoder

#: Share of tokens from which a feature is dense.
DENSE = 0.1


def quality_of(sae: SparseAutoencoder, reader: Reader, texts: Sequence[str]) -> dict[str, float]:
    """Return L0, unexplained variance, dead and dense share of features, and the share of the loss recovered.

    The last compares the model's loss with the reconstruction in place of the states, with the loss with their mean
    in their place: 1 if nothing is lost.
    """
    x_nD = torch.cat(list(reader.states(texts)))
    values_nd = torch.from_numpy(sae.encode(x_nD.numpy()))
    error = (x_nD - torch.from_numpy(sae.decode(values_nd.numpy()))).square().sum()
    mean_D = x_nD.mean(dim=0)
    share_d = (values_nd > 0).float().mean(dim=0)

    def decoded(h_TD: Tensor) -> Tensor:
        return torch.from_numpy(sae.decode(sae.encode(h_TD.float().numpy()))).to(h_TD.dtype)

    own, with_mean = reader.losses(texts), reader.losses(texts, lambda h_TD: mean_D.expand_as(h_TD).to(h_TD.dtype))
    return {
        "l0": float(share_d.sum()),
        "unexplained_variance": float(error / (x_nD - mean_D).square().sum()),
        "dead_share": float((share_d == 0).float().mean()),
        "dense_share": float((share_d > DENSE).float().mean()),
        "loss_recovered": (with_mean - reader.losses(texts, decoded)) / (with_mean - own),
        "num_tokens": float(len(x_nD)),
    }
