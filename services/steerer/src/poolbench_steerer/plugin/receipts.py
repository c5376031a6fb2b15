"""Proof that a text was steered: positions really changed, against the number expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poolbench.errors import ReceiptError
from poolbench_steerer.plugin.spec import Steering


@dataclass(frozen=True)
class RowCount:
    """What the worker counted for one request.

    Attributes:
        changed: Positions whose hidden state changed, by layer; layers without any are absent.
        repeated: Positions steered again because the request had been preempted.
        skipped: Positions in the steered range that were never computed for this request.
        stray: Changes at tokens that no steered request owns, since the engine started.
    """

    changed: dict[int, int]
    repeated: int
    skipped: int
    stray: int

    @classmethod
    def from_wire(cls, values: dict[str, Any]) -> RowCount:
        changed = {int(layer): int(count) for layer, count in values["changed"]}
        return cls(changed, int(values["repeated"]), int(values["skipped"]), int(values["stray"]))


@dataclass(frozen=True)
class Receipt:
    """The proof that travels with a steered text."""

    vector_ids: tuple[str, ...]
    layers: tuple[int, ...]
    alphas: tuple[float, ...]
    positions_changed: int
    positions_expected: int


def check(steering: Steering, count: RowCount, num_prompt_tokens: int, num_new_tokens: int) -> Receipt:
    """The receipt of a finished request.

    Raises:
        ReceiptError: When a layer was not changed at exactly the expected positions, another layer was
            changed, or tokens of nobody were.
    """
    positions = steering.num_positions(num_prompt_tokens, num_new_tokens)
    expected = dict.fromkeys(steering.live_layers, positions)
    found = {layer: changed - count.repeated for layer, changed in count.changed.items()}
    if found != expected or count.skipped or count.stray:
        raise ReceiptError(
            f"steering was not applied as asked: positions changed by layer {found}, expected {expected}, "
            f"{count.skipped} positions skipped, {count.stray} changes outside of steered requests; "
            "the text is discarded"
        )
    return Receipt(
        tuple(edit.vector_id for edit in steering.edits),
        tuple(edit.layer for edit in steering.edits),
        tuple(edit.alpha for edit in steering.edits),
        sum(found.values()),
        sum(expected.values()),
    )
