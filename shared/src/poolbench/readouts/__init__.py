"""Readouts: how the parts that a supervised strategy pools become one vector, learned from training rows only.

A strategy whose `readout` names one pools several vectors (parts) per passage. The prober fits the readout on the
training rows of each fold, under the labels of the probe that will use it, and applies it to the held-out rows.
NumPy only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.registry import Registry

#: Scores [n, K] of probes on vectors [n, D], each row by a probe fitted without its inner fold.
HeldOutScores = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Training:
    """The training rows of a fold.

    Attributes:
        parts_nPD: P vectors per passage. For a strategy that reads states, an object array [n, 1, 1] with the states
            [T, D] of each passage's real tokens.
        labels_nK: Labels 0 or 1, one column per labeling (the concept, permuted labels, control tasks).
        folds: Inner fold of each row [n]. The rows of a group share a fold.
        held_out_scores: Function that returns out-of-fold scores of vectors [n, D] under every labeling, from the inner
            folds. NaN if a probe did not converge.
    """

    parts_nPD: np.ndarray
    labels_nK: np.ndarray
    folds: np.ndarray
    held_out_scores: HeldOutScores

    @property
    def num_parts(self) -> int:
        """Return the number of vectors per passage."""
        return int(self.parts_nPD.shape[1])


@dataclass(frozen=True)
class FittedReadout:
    """A readout that was fitted under a labeling."""

    apply: Callable[[np.ndarray], np.ndarray]  # from parts [m, P, D] to vectors [m, D], row by row
    details: Mapping[str, Any] = field(default_factory=dict)  # what was chosen, as JSON values, for readers of results


#: One fitted readout for each labeling of the training rows, or why there is none.
ReadoutFunction = Callable[[Training], Sequence[FittedReadout | CellError]]


@dataclass(frozen=True)
class ReadoutSpec:
    """A registered readout."""

    id: str  # value of a strategy's `readout`
    version: int  # raised when the meaning changes; part of the keys of probes that use it
    summary: str
    reference: str
    fit: ReadoutFunction = field(compare=False)  # fits it on training rows

    def identity(self) -> dict[str, Any]:
        """Return the part that enters artifact keys."""
        return {"id": self.id, "version": self.version}


READOUTS = Registry(
    "readout",
    ReadoutSpec,
    group="poolbench.readouts",
    built_in=("poolbench.readouts.heads", "poolbench.readouts.query", "poolbench.readouts.scores"),
    make=lambda readout_id, fit, **metadata: ReadoutSpec(readout_id, fit=fit, **metadata),
)
