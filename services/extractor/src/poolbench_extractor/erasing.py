"""Erasure of directions from the states of a layer while the model runs."""

from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import torch
from torch import Tensor
from transformers.utils import ModelOutput

from poolbench.contracts.tables import vector_matrix
from poolbench.directions.erasure import orthonormal


@dataclass(frozen=True)
class Erased:
    """Directions to erase: the states of a layer lose their projection on these directions at every position."""

    layer: int
    basis_rD: Tensor  # orthonormal, float32

    @classmethod
    def of(cls, layer: int, directions: pa.Table) -> Self:
        """Return the erasure of the span of all directions of a table."""
        return cls(layer, torch.from_numpy(orthonormal(vector_matrix(directions["vector"]))).float())

    def apply(self, output: Any) -> Any:
        """Return the output of the layer's module with the directions erased from its states, in float32."""
        h_BTD = output if isinstance(output, Tensor) else output[0]
        states, basis_rD = h_BTD.float(), self.basis_rD.to(h_BTD.device)
        return with_states(output, (states - (states @ basis_rD.T) @ basis_rD).to(h_BTD.dtype))


def with_states(output: Any, h_BTD: Tensor) -> Any:
    """Return the output of a module with its hidden states replaced by `h_BTD`."""
    if isinstance(output, Tensor):
        return h_BTD
    if isinstance(output, ModelOutput):
        answer = copy(output)
        answer["last_hidden_state"] = h_BTD
        return answer
    return (h_BTD, *output[1:])
