"""The named per-token signals that strategies may read, and their sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from poolbench.errors import CellError

#: What must be watched to make a signal of a layer: the hidden states alone, the attention of the layer's block, or
#: the loss, which costs a forward pass to the end and a backward pass to the layer. Signals from counts of the run's
#: train texts are the same at all layers, and known before the forward pass.
Source = Literal["states", "attention", "loss", "counts"]

#: The signals of one passage, [T] or [H, T] each; an error if one cannot be computed.
Signals = Mapping[str, np.ndarray | CellError]


@dataclass(frozen=True)
class Signal:
    """An array over all positions of a passage. It belongs to a layer, unless its source is token counts."""

    name: str  # its name in a strategy's `needs`
    source: Source  # what it is made from
    summary: str  # one line for listings
    per_head: bool = False  # whether it is [H, T] instead of [T]


SIGNALS: dict[str, Signal] = {
    signal.name: signal
    for signal in (
        Signal("norms", "states", "L2 norm of the hidden state"),
        Signal("inflow", "attention", "position-corrected attention inflow, mean over heads"),
        Signal("head_inflow", "attention", "position-corrected attention inflow of each head", per_head=True),
        Signal("received", "attention", "attention that the token receives, mean over queries and heads"),
        Signal("gradient", "loss", "L2 norm of the gradient of the mean next-token loss at the hidden state"),
        Signal("gradient_dot", "loss", "inner product of the hidden state and this gradient"),
        Signal("frequency", "counts", "relative frequency of the token in the train passages of all concepts"),
    )
}

#: Captured signals that kept states carry; those made from the states alone are made again when they are pooled.
KEPT_SIGNALS = ("inflow", "head_inflow")


def from_source(source: Source, names: Iterable[str]) -> list[str]:
    """Return the names that belong to signals made from `source`, in alphabetical order."""
    return sorted(name for name in set(names) if name in SIGNALS and SIGNALS[name].source == source)
