"""What CE-Bench compares: an autoencoder, its random directions, or the coordinates of a layer, with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from poolbench.contracts import Row
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench_driver.contract.page import Cell
from poolbench_driver.pages.cells import figure, number
from poolbench_driver.suites.ce_bench.metrics import PRIMARY, RECOVERED, UNEXPLAINED

AUTOENCODER, RANDOM, COORDINATES = "autoencoder", "random", "coordinates"
NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class Entrant:
    """An autoencoder, its random directions, or the coordinates of a layer.

    Attributes:
        figures: Rows by metric.
        subjects: Rows of `subjects.parquet` by subject.
        family: What it shares with autoencoders of other seeds; None without a seed.
        seed: Seed of its training.
        null_of: Name of the autoencoder whose random directions it is; None for others.
        sparse: Mean AUROC of sparse probes over concepts, by their number k of features.
    """

    name: str
    kind: str
    layer: int
    architecture: str | None
    figures: Mapping[str, Row]
    subjects: Mapping[str, Row] = field(default_factory=dict, repr=False)
    family: str | None = None
    seed: int | None = None
    null_of: str | None = None
    sparse: Mapping[int, float | None] = field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """Return a figure; None where there is none."""
        value: float | None = self.figures.get(metric, {}).get("value")
        return value

    def figure(self, metric: str) -> Cell:
        """Return a figure, or why there is none. Random directions reconstruct nothing."""
        if self.kind == RANDOM and metric in (UNEXPLAINED, RECOVERED):
            return Cell()
        return figure(self.figures.get(metric))

    def count(self, metric: str) -> Cell:
        """Return a figure that counts something."""
        value = self.value(metric)
        return number(value, ",.0f" if value is None or value >= 10 else ".1f")

    def interval(self, metric: str = PRIMARY) -> str:
        """Return the interval of a figure, empty if it has none."""
        row = self.figures.get(metric, {})
        return "" if row.get("ci_low") is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"

    def beats(self, other: Entrant, column: str = "interpretability") -> bool:
        """Return whether the mean difference over the subjects that both have is above 0, with its 95 % interval."""
        pairs = [(row[column], other.subjects.get(name, {}).get(column)) for name, row in self.subjects.items()]
        differences = np.array([ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None])
        if len(differences) < 2:
            return False
        ends = percentile_interval(group_mean_resamples(differences[:, None], num_resamples=NUM_RESAMPLES)[:, 0])
        return ends is not None and ends[0] > 0
