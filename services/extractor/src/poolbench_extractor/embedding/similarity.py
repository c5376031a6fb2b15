"""Similarities of vectors under the names that sentence-transformers gives them; larger is more alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

#: Similarity of every row of [N, D] with every row of [M, D], as [N, M].
SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a_ND, b_MD: normalize(a_ND) @ normalize(b_MD).T,
    "dot": lambda a_ND, b_MD: a_ND @ b_MD.T,
    "euclidean": lambda a_ND, b_MD: -torch.cdist(a_ND, b_MD, p=2.0),
    "manhattan": lambda a_ND, b_MD: -torch.cdist(a_ND, b_MD, p=1.0),
}
_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda a_ND, b_ND: (normalize(a_ND) * normalize(b_ND)).sum(-1),
    "dot": lambda a_ND, b_ND: (a_ND * b_ND).sum(-1),
    "euclidean": lambda a_ND, b_ND: -(a_ND - b_ND).norm(dim=-1),
    "manhattan": lambda a_ND, b_ND: -(a_ND - b_ND).abs().sum(-1),
}


def similarity_of(name: str, first: Any, second: Any) -> Tensor:
    """All similarities [N, M] of vectors [N, D] and [M, D]; a single vector counts as one row."""
    return SIMILARITIES[name](_matrix(first), _matrix(second))


def pairwise_of(name: str, first: Any, second: Any) -> Tensor:
    """Similarities [N] of the rows of [N, D] and [N, D]."""
    return _PAIRWISE[name](_matrix(first), _matrix(second))


def _matrix(vectors: Any) -> Tensor:
    if isinstance(vectors, list):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    tensor = torch.from_numpy(vectors) if isinstance(vectors, np.ndarray) else vectors
    return torch.atleast_2d(tensor).float()
