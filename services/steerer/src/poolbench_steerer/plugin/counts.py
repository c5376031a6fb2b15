"""The worker's counts for steered requests, and their form between worker and engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from poolbench_steerer.plugin.rows import NUM_COPIES, UNSTEERED

if TYPE_CHECKING:
    from poolbench_steerer.plugin.state import SteeringState


@dataclass(frozen=True)
class LayerCount:
    """Counts for one request at one layer; `again` are positions computed once more.

    Attributes:
        changed, changed_again: Positions whose hidden state changed.
        applied, applied_again: Positions at which all edits of the layer ran.
    """

    changed: int = 0
    changed_again: int = 0
    applied: int = 0
    applied_again: int = 0


@dataclass(frozen=True)
class RowCount:
    """Counts for one request.

    Attributes:
        layers: Counts by layer; layers without any are absent.
        repeated: Positions steered again because the request had been preempted.
        skipped: Positions in the steered range that were never computed for this request.
        stray: Changes at tokens that belong to no request since the engine started, and at tokens of this request that
            are not to be steered.
        broken: By layer, positions whose state became too large or was not finite.
    """

    layers: dict[int, LayerCount]
    repeated: int
    skipped: int
    stray: int
    broken: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RowCount:
        """Return the counts that `counts_of` wrote."""
        layers = {int(layer): LayerCount(*map(int, counts)) for layer, counts in values["layers"]}
        broken = {int(layer): int(count) for layer, count in values["broken"]}
        return cls(layers, int(values["repeated"]), int(values["skipped"]), int(values["stray"]), broken)


def counts_of(state: SteeringState, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the counts of the requests that own `rows`, as JSON values, by one transfer from the device."""
    columns = [row + copy * state.rows.num_rows for row in (0, *rows) for copy in range(NUM_COPIES)]
    tables = (state.changed_LR, state.applied_LR, state.broken_LR)
    found = torch.stack([table_LR[:, columns] for table_LR in tables]).cpu().numpy()
    # [0 and requests, layers, (changed, applied, broken), copies of the row]
    counted = found.reshape(len(tables), len(found[0]), -1, NUM_COPIES).transpose(2, 1, 0, 3)
    unowned = int(counted[0, :, 0].sum())
    return [_reply(counts, state.rows.account(row), unowned) for row, counts in zip(rows, counted[1:], strict=True)]


def _reply(counts: np.ndarray, account: tuple[int, int], unowned: int) -> dict[str, Any]:
    """Return the counts of one request, [layers, (changed, applied, broken), copies of its row]."""
    steered, broken = counts[:, :2, :UNSTEERED], counts[:, 2].sum(axis=1)
    layers = np.flatnonzero(steered.any(axis=(1, 2)))
    return {
        "layers": [[int(layer), steered[layer].reshape(-1).tolist()] for layer in layers],
        "repeated": account[0],
        "skipped": account[1],
        "stray": unowned + int(counts[:, 0, UNSTEERED].sum()),
        "broken": [[int(layer), int(broken[layer])] for layer in np.flatnonzero(broken)],
    }
