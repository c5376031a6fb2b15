"""What the worker counted for steered requests, and how it travels from the worker to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from poolbench_steerer.plugin.state import SteeringState


@dataclass(frozen=True)
class LayerCount:
    """What the worker counted for one request at one layer; ``again`` are positions computed once more.

    Attributes:
        changed, changed_again: Positions whose hidden state changed.
        applied, applied_again: Positions that all edits of the layer met. Not counted, so 0, where the only
            edit is one addition: there the change is the proof.
    """

    changed: int = 0
    changed_again: int = 0
    applied: int = 0
    applied_again: int = 0


@dataclass(frozen=True)
class RowCount:
    """What the worker counted for one request.

    Attributes:
        layers: Counts by layer; layers without any are absent.
        repeated: Positions steered again because the request had been preempted.
        skipped: Positions in the steered range that were never computed for this request.
        stray: Changes at tokens that no steered request owns, since the engine started.
    """

    layers: dict[int, LayerCount]
    repeated: int
    skipped: int
    stray: int

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RowCount:
        """What ``counts_of`` wrote."""
        layers = {int(layer): LayerCount(*map(int, counts)) for layer, counts in values["layers"]}
        return cls(layers, int(values["repeated"]), int(values["skipped"]), int(values["stray"]))


def counts_of(state: SteeringState, rows: Sequence[int]) -> list[dict[str, Any]]:
    """The counts of the requests that own ``rows``, as they travel: one transfer from the device for all."""
    num_rows = state.rows.num_rows
    columns = [0, num_rows] + [column for row in rows for column in (row, row + num_rows)]
    # [layers, requests and 1, (changed, applied), (first, again)]
    both = torch.stack([state.changed_LR[:, columns], state.applied_LR[:, columns]]).cpu().numpy()
    counted = both.reshape(2, len(both[0]), -1, 2).transpose(1, 2, 0, 3)
    stray = int(counted[:, 0, 0].sum())
    replies = []
    for index, row in enumerate(rows, start=1):
        repeated, skipped = state.rows.account(row)
        layers = [
            [int(layer), counted[layer, index].reshape(-1).tolist()]
            for layer in np.flatnonzero(counted[:, index].any(axis=(1, 2)))
        ]
        replies.append({"layers": layers, "repeated": repeated, "skipped": skipped, "stray": stray})
    return replies
