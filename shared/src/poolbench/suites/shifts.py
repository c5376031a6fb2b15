"""Shifts of two concepts' scores at one strength, in units of each scorer."""

import numpy as np

from poolbench.statistics.resampling import bootstrap_counts
from poolbench.suites.grids import ResponseGrid
from poolbench.suites.response import best_column, gain_at, halves
from poolbench.suites.rules import SteeringRules


class Shifts:
    """Shifts of target and neighbour at the target's best strength.

    The strength is chosen on one half of the openings, the shifts are read on the other.

    Attributes:
        strength: The chosen strength.
        num_read: Openings on which the shifts are read.
        target: Shift of the target: entry 0 is the value, the rest are resamples [1 + R].
        neighbour: Shift of the neighbour in the same resamples [1 + R].
    """

    def __init__(
        self, target: ResponseGrid, neighbour: ResponseGrid, units: tuple[float, float], rules: SteeringRules
    ) -> None:
        choose, read = halves(len(target.openings), rules.seed)
        column = best_column(target.at_openings(choose), rules)
        weights = np.vstack([np.ones((1, len(read))), bootstrap_counts(len(read), rules.num_bootstrap, rules.seed)])
        self.strength = float(target.strengths[column])
        self.num_read = len(read)
        self.target = gain_at(target.at_openings(read), column, weights) / units[0]
        self.neighbour = gain_at(neighbour.at_openings(read), column, weights) / units[1]

    def robust(self) -> np.ndarray:
        """Return dA - |dB|."""
        return self.target - np.abs(self.neighbour)

    def details(self) -> dict[str, float]:
        """Return the chosen strength and the two shifts."""
        return {
            "strength": self.strength,
            "target_shift": float(self.target[0]),
            "neighbour_shift": float(self.neighbour[0]),
        }
