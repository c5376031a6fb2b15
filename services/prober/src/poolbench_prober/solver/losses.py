"""The losses of probes: predictions, and how the gradient changes with the margins. Arrays are [B, n, P, k]."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poolbench_prober.solver.backend import Array, Backend
from poolbench_prober.solver.interface import LossName


@dataclass(frozen=True)
class Loss:
    """B problems of P probes with k outputs.

    Attributes:
        targets: [B, n, P, k].
        scale: C of each probe for a row, 0 for a padding row [B, n, P, 1].
    """

    name: LossName
    targets: Array
    scale: Array
    backend: Backend

    def take(self, probes: Array) -> Loss:
        """Return some of the probes."""
        return replace(self, targets=self.targets[:, :, probes], scale=self.scale[:, :, probes])

    def predict(self, margins: Array) -> Array:
        """Return predictions of the margins."""
        xp = self.backend.xp
        if self.name == "logistic":
            return 0.5 + 0.5 * xp.tanh(0.5 * margins)
        if self.name == "softmax":
            powers = xp.exp(margins - xp.amax(margins, -1)[..., None])
            return powers / powers.sum(-1)[..., None]
        return margins

    def residual(self, margins: Array) -> Array:
        """Return derivative of C times the loss by the margins."""
        return self.scale * (self.predict(margins) - self.targets)

    def curvature(self, margins: Array) -> Curvature:
        """Return second derivative at the margins."""
        predicted = self.predict(margins)
        if self.name == "logistic":
            return Curvature(self.scale * predicted * (1 - predicted))
        if self.name == "softmax":
            return Curvature(self.scale * predicted, predicted)
        return Curvature(self.scale + 0 * predicted)


@dataclass(frozen=True)
class Curvature:
    """Second derivative of the loss of each row by its k margins.

    Attributes:
        weight: Its diagonal, before the part that classes share [B, n, P, k].
        shared: Probabilities of the classes (softmax), whose mean is removed from a change; None elsewhere.
    """

    weight: Array
    shared: Array | None = None

    def diagonal(self) -> Array:
        """Return the diagonal [B, n, P, k]."""
        return self.weight if self.shared is None else self.weight * (1 - self.shared)

    def apply(self, change: Array) -> Array:
        """Return the change of the residual where the margins change."""
        if self.shared is not None:
            change = change - (self.shared * change).sum(-1)[..., None]
        return self.weight * change

    def take(self, probes: Array) -> Curvature:
        """Return some of the probes."""
        shared = None if self.shared is None else self.shared[:, :, probes]
        return Curvature(self.weight[:, :, probes], shared)

    def cast(self, backend: Backend, single: bool) -> Curvature:
        """Return the curvature in float32 or float64."""
        shared = None if self.shared is None else backend.cast(self.shared, single)
        return Curvature(backend.cast(self.weight, single), shared)
