"""Mean residual norms per layer, measured inside an engine that runs its blocks eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poolbench_steerer.plugin.state import SteeringState


class NormTap:
    """Sums the residual norms of all tokens that pass the blocks while it is on.

    Python hooks do not run inside compiled or captured graphs, so an engine with such graphs has no tap.
    """

    def __init__(self, blocks: Sequence[torch.nn.Module], state: SteeringState, first_position: int) -> None:
        self._state = state
        self._first_position = first_position
        self._sums = [0.0] * len(blocks)
        self._counts = [0] * len(blocks)
        self._handles = [block.register_forward_hook(self._hook(layer)) for layer, block in enumerate(blocks)]

    def close(self) -> list[tuple[float, int]]:
        """End the measurement; returns (sum of norms, number of tokens) by layer."""
        for handle in self._handles:
            handle.remove()
        return list(zip(self._sums, self._counts, strict=True))

    def _hook(self, layer: int) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            positions = torch.from_numpy(self._state.rows.positions)
            stream = output[0] + output[1] if isinstance(output, tuple) else output
            real = stream.view(-1, stream.shape[-1])[: len(positions)][
                (positions >= self._first_position).to(stream.device)
            ]
            self._sums[layer] += float(real.float().norm(dim=-1).double().sum())
            self._counts[layer] += len(real)

        return hook
