"""Proof that a text was steered: positions that the op really met and changed, against the number expected.

There are three counts per layer. *Expected* follows from prompt, new tokens and requested positions. *Applied* are the
positions at which the op ran for this request with vectors that are not zero and a finite result. *Changed* are those
whose hidden state differs afterwards, bit for bit. An addition changes every position, so all three must be equal. A
clamp or an erasure finds some positions at their target already, so there only *applied* must equal *expected*. With a
condition, positions at which it did not hold are *spared*: they are counted too, and must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from poolbench.errors import ReceiptError
from poolbench_steerer.errors import NoEffectError
from poolbench_steerer.plugin.rows import NUM_COPIES, NUM_LATEST, UNSTEERED
from poolbench_steerer.plugin.spec import Condition, Edit, Steering
from poolbench_steerer.plugin.state import APPLIED, CHANGED, SPARED, SteeringState

_WIRE_TOTALS = ("repeated", "skipped", "stray", "end", "beyond")
_TOTALS = ("positions_changed", "positions_applied", "positions_expected")


@dataclass(frozen=True)
class LayerReceipt:
    """The changes at one layer of one request."""

    layer: int
    edits: tuple[Edit, ...]
    positions_expected: int
    positions_applied: int
    positions_changed: int


@dataclass(frozen=True)
class Receipt:
    """The proof of a steered text.

    Attributes:
        vector_ids, layers, alphas, operations: Of every requested edit, in the order given.
        positions_changed, positions_applied, positions_expected: Sums over layers with live edits.
        where: The condition of the edits, if any.
        positions_spared: Positions at which the condition did not hold. They are expected too.
    """

    vector_ids: tuple[str, ...]
    layers: tuple[int, ...]
    alphas: tuple[float, ...]
    operations: tuple[str, ...]
    positions_changed: int
    positions_applied: int
    positions_expected: int
    by_layer: tuple[LayerReceipt, ...]
    where: Condition | None = None
    positions_spared: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that services send, with totals, and with the counts of its layer for each edit."""
        counts = {layer_receipt.layer: layer_receipt for layer_receipt in self.by_layer}
        edits = zip(self.vector_ids, self.layers, self.alphas, self.operations, strict=True)
        lists = {name: list(getattr(self, name)) for name in ("vector_ids", "layers", "alphas", "operations")}
        each_edit = [
            {"vector_id": vector_id, "layer": layer, "alpha": alpha, "operation": operation}
            | {name: getattr(counts.get(layer), name, 0) for name in _TOTALS}  # 0 at a layer without live edits
            for vector_id, layer, alpha, operation in edits
        ]
        receipt = lists | {name: getattr(self, name) for name in _TOTALS} | {"edits": each_edit}
        if self.where is not None:
            bound = {"above" if self.where.above else "below": self.where.threshold}
            condition = {"vector_id": self.where.vector_id, "layer": self.where.layer, **bound}
            receipt["where"] = condition | {"positions_spared": self.positions_spared}
        return receipt


def check(steering: Steering, count: RowCount, num_prompt_tokens: int, num_new_tokens: int) -> Receipt:
    """Return the receipt of a finished request.

    Raises:
        ReceiptError: When a layer was not steered at exactly the expected positions, another layer was, or
            tokens of no request were.
        NoEffectError: When all positions were met as expected, but an addition was lost in rounding at some.
    """
    expected = steering.num_positions(num_prompt_tokens, num_new_tokens)
    live = steering.live_by_layer if expected else {}
    layer_counts = {layer: count.layers.get(layer, LayerCount()) for layer in live}
    spared = {(counts.spared, counts.spared_again) for counts in layer_counts.values()} or {(0, 0)}
    judged = spared == {(0, 0)} or (steering.where is not None and len(spared) == 1)  # one decision for all layers
    num_spared, num_spared_again = max(spared)
    num_met, num_repeated = expected - num_spared, count.repeated - num_spared_again
    wrong = [
        layer
        for layer, edits in live.items()
        if not (judged and _right(edits, layer_counts[layer], num_met, num_repeated))
    ]
    others = sorted(count.layers.keys() - live.keys())
    if wrong or others or count.skipped or count.stray:
        changed = {layer: counts.changed for layer, counts in count.layers.items()}
        if not (others or count.skipped or count.stray) and all(
            judged and _met(layer_counts[w], num_met, num_repeated) for w in wrong
        ):
            raise NoEffectError(_lost(wrong, live, layer_counts, num_met))
        raise ReceiptError(
            f"steering was not applied as asked: positions changed by layer {changed}, expected "
            f"{dict.fromkeys(live, num_met)}, wrong at layers {wrong + others}, {count.repeated} positions repeated, "
            f"{count.skipped} skipped, {count.stray} changes outside of steered requests; the text is discarded"
        )
    by_layer = tuple(
        LayerReceipt(layer, edits, expected, _applied(edits, layer_counts[layer])[0], layer_counts[layer].changed)
        for layer, edits in live.items()
    )
    return Receipt(
        tuple(edit.vector_id for edit in steering.edits),
        tuple(edit.layer for edit in steering.edits),
        tuple(edit.alpha for edit in steering.edits),
        tuple(edit.operation for edit in steering.edits),
        sum(layer_receipt.positions_changed for layer_receipt in by_layer),
        sum(layer_receipt.positions_applied for layer_receipt in by_layer),
        sum(layer_receipt.positions_expected for layer_receipt in by_layer),
        by_layer,
        steering.where,
        num_spared,
    )


def _right(edits: tuple[Edit, ...], counts: LayerCount, expected: int, repeated: int) -> bool:
    if _applied(edits, counts) != (expected, repeated):
        return False
    if all(edit.additive for edit in edits):
        return (counts.changed, counts.changed_again) == (expected, repeated)
    return counts.changed <= expected and counts.changed_again <= repeated


def _met(counts: LayerCount, expected: int, repeated: int) -> bool:
    """Return whether every position was met, and none changed that should not have been."""
    met = (counts.applied, counts.applied_again) == (expected, repeated)
    return met and counts.changed <= expected and counts.changed_again <= repeated


def _lost(
    wrong: list[int], live: dict[int, tuple[Edit, ...]], layer_counts: dict[int, LayerCount], expected: int
) -> str:
    places = "; ".join(
        f"layer {layer} with alpha {', '.join(f'{edit.alpha:g}' for edit in live[layer])}: "
        f"{layer_counts[layer].changed} of {expected} positions changed"
        for layer in wrong
    )
    return (
        f"the steering is too small for the precision of the model's states and was lost in rounding ({places}); "
        "every position must change: use a larger alpha or strength"
    )


def _applied(edits: tuple[Edit, ...], counts: LayerCount) -> tuple[int, int]:
    if len(edits) == 1 and edits[0].operation == "add":
        return counts.changed, counts.changed_again
    return counts.applied, counts.applied_again


@dataclass(frozen=True)
class LayerCount:
    """Counts for one request at one layer. Counts with `again` are of positions that were computed again.

    Attributes:
        changed, changed_again: Positions whose hidden state changed.
        applied, applied_again: Positions at which all edits of the layer ran.
        spared, spared_again: Positions at which the condition of the edits did not hold.
    """

    changed: int = 0
    changed_again: int = 0
    applied: int = 0
    applied_again: int = 0
    spared: int = 0
    spared_again: int = 0


@dataclass(frozen=True)
class RowCount:
    """Counts for one request.

    Attributes:
        layers: Counts by layer, without layers that have no counts.
        repeated: Positions steered again because the request had been preempted.
        skipped: Positions in the steered range that were never computed for this request.
        stray: Changes at tokens that belong to no request since the engine started, and at tokens of this request that
            must not be steered.
        broken: By layer, positions whose state became too large or was not finite.
        end: First position that is not counted: the one behind the text, or a later one if more than `NUM_LATEST`
            positions behind the text were computed.
        beyond: Positions in the steered range from `end` on that were computed, and are not counted.
    """

    layers: dict[int, LayerCount]
    repeated: int
    skipped: int
    stray: int
    broken: dict[int, int]
    end: int
    beyond: int

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> Self:
        """Return the counts that `counts_of` wrote."""
        layers = {int(layer): LayerCount(*map(int, counts)) for layer, counts in values["layers"]}
        broken = {int(layer): int(count) for layer, count in values["broken"]}
        repeated, skipped, stray, end, beyond = (int(values[name]) for name in _WIRE_TOTALS)
        return cls(layers, repeated, skipped, stray, broken, end, beyond)


def counts_of(state: SteeringState, texts: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the counts of requests, as JSON values, by one transfer from the device.

    Args:
        texts: Of each request its row, and the first position behind its text. An engine that schedules ahead may have
            computed later positions. They are not counted.
    """
    rows = (0, *(row for row, _ in texts))
    columns = [row + copy * state.rows.num_rows for row in rows for copy in range(NUM_COPIES)]
    tables = (state.changed_LR, state.applied_LR, state.spared_LR, state.broken_LR)
    columns_4LC = torch.stack([table_LR[:, columns] for table_LR in tables]).cpu().numpy()
    # [0 and requests, layers, (changed, applied, spared, broken), copies of the row]
    counted = columns_4LC.reshape(len(tables), len(columns_4LC[0]), -1, NUM_COPIES).transpose(2, 1, 0, 3)
    unowned = int(counted[0, :, 0].sum())
    replies = []
    for (row, end), counts in zip(texts, counted[1:], strict=True):
        beyond = state.rows.steered_from(row, end)[-NUM_LATEST:]
        if beyond:
            _take_off(counts, state, row, beyond)
        reply = {"end": beyond.start if beyond else end, "beyond": len(beyond)}
        replies.append(_reply(counts, state.rows.account(row), unowned) | reply)
    return replies


def _take_off(counts: np.ndarray, state: SteeringState, row: int, beyond: range) -> None:
    """Take positions behind the text off the counts of a row, [layers, (changed, applied, spared, broken), copies]."""
    places = [position % NUM_LATEST for position in beyond]
    flags_LP = state.latest_LRP[:, row, places].cpu().numpy()
    for number, flag in enumerate((CHANGED, APPLIED, SPARED)):
        counts[:, number, 0] -= (flags_LP & flag > 0).sum(axis=1)


def _reply(counts: np.ndarray, account: tuple[int, int], unowned: int) -> dict[str, Any]:
    """Return the counts of one request, [layers, (changed, applied, spared, broken), copies of its row]."""
    steered, broken = counts[:, :3, :UNSTEERED], counts[:, 3].sum(axis=1)
    layers = np.flatnonzero(steered.any(axis=(1, 2)))
    return {
        "layers": [[int(layer), steered[layer].reshape(-1).tolist()] for layer in layers],
        "repeated": account[0],
        "skipped": account[1],
        "stray": unowned + int(counts[:, 0, UNSTEERED].sum()),
        "broken": [[int(layer), int(broken[layer])] for layer in np.flatnonzero(broken)],
    }
