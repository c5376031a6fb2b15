"""What CE-Bench compares, and families of it: autoencoders that differ by the seed of their training alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean, stdev

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.keys import digest
from poolbench.directions.sae import SparseAutoencoder
from poolbench.directions.sae_files import read_config
from poolbench.grouping import grouped
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench_driver.contract.page import Cell, Line, Part, Table
from poolbench_driver.pages.plain import HasFigures, figure, number
from poolbench_driver.suites.ce_bench.metrics import HELD_OUT, PRIMARY, RECOVERED, UNEXPLAINED

AUTOENCODER, RANDOM, COORDINATES = "autoencoder", "random", "coordinates"
NUM_RESAMPLES = 1000


@dataclass(frozen=True)
class SaeEntrant(HasFigures):
    """An autoencoder, its random directions, or the coordinates of a layer.

    Attributes:
        figures: Rows by metric.
        subjects: Rows of `subjects.parquet` by subject.
        family: Hash of the training settings shared with autoencoders of other seeds. None without a seed.
        seed: Seed of its training.
        null_of: For random directions, the name of their autoencoder. Otherwise None.
        sparse: Mean AUROC of sparse probes over concepts, by their number k of features.
        model: If entrants of several models are joined, the model that the entrant reads.
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
    model: str = ""

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
        """Return the interval of a figure as text, or "" if the figure has none."""
        row = self.figures.get(metric, {})
        return "" if row.get("ci_low") is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"

    def beats(self, other: SaeEntrant, column: str = "interpretability") -> bool:
        """Return whether the 95 % interval of the mean difference lies above 0, over the subjects that both have."""
        pairs = [(row[column], other.subjects.get(name, {}).get(column)) for name, row in self.subjects.items()]
        differences = np.array([ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None])
        if len(differences) < 2:
            return False
        ends = percentile_interval(group_mean_resamples(differences[:, None], num_resamples=NUM_RESAMPLES)[:, 0])
        return ends is not None and ends[0] > 0


_SCORE = "interpretability"
_METRICS = {
    PRIMARY: _SCORE,
    "ce.contrastive": "contrastive",
    HELD_OUT: "held out",
    "ce.unexplained_variance": "unexplained",
}

_NOTE = (
    "Autoencoders that differ by the seed of their training alone are a family. Mean ± standard deviation, and the "
    "range over the seeds in brackets. A difference between two families within these ranges may come from the seed. "
    "The last line counts the pairs of families whose ranges do not overlap. Autoencoders without `metadata.seed` in "
    "their configuration are in no family."
)


def training_of(sae: SparseAutoencoder, config: bytes, model: str, layer: int) -> tuple[str | None, int | None]:
    """Return a hash of the training settings that autoencoders of other seeds share, and the seed.

    The seed is `metadata.seed` of the configuration. Without a seed, both are None. The hash covers the rest of the
    configuration, the model, the layer and the size.
    """
    settings = read_config(config)
    entry = settings.get("metadata")
    metadata = entry if isinstance(entry, dict) else {}
    seed = metadata.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        return None, None
    settings["metadata"] = {name: value for name, value in metadata.items() if name != "seed"}
    size = [sae.architecture, sae.width, sae.num_features]
    return digest([model, layer, size, json.dumps(settings, sort_keys=True)], 16), seed


@dataclass(frozen=True)
class Family:
    """Autoencoders of two seeds or more.

    Attributes:
        name: Name of the autoencoder with the smallest seed.
        values: For each figure, the values of all seeds, or None if a member has no value.
    """

    name: str
    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float, ...] | None]

    def text(self, figure: str) -> str:
        """Return mean, standard deviation (ddof 1) and range of a figure over the seeds."""
        values = self.values[figure]
        if values is None:
            return "not of all seeds"
        return f"{mean(values):.3f} ± {stdev(values):.3f} ({min(values):.3f} to {max(values):.3f})"


@dataclass(frozen=True)
class Families:
    """The families of some entrants.

    Attributes:
        unclear: Names of autoencoders that have one seed and still differ, so that they are not a family.
    """

    all: Sequence[Family] = ()
    unclear: Sequence[str] = ()

    @property
    def figures(self) -> list[str]:
        """Return the names of the figures."""
        return list(self.all[0].values) if self.all else []

    def apart(self, figure: str) -> tuple[int, int]:
        """Return how many pairs of families have ranges that do not overlap, and of how many, for a figure."""
        ranges = [values for family in self.all if (values := family.values[figure]) is not None]
        pairs = list(combinations(ranges, 2))
        return sum(max(one) < min(other) or max(other) < min(one) for one, other in pairs), len(pairs)

    def parts(self) -> Iterator[Part]:
        """Yield the table of the families, if there are any. The last line counts the pairs that ranges separate."""
        if not self.all:
            return
        lines = [
            Line.of(family.name, ", ".join(map(str, family.seeds)), *map(family.text, self.figures))
            for family in self.all
        ]
        if len(self.all) > 1:
            apart = (f"{separated} of {pairs}" for separated, pairs in map(self.apart, self.figures))
            lines.append(Line.of("pairs that ranges separate", "", *apart))
        yield Part("seeds", "Seeds of training", [Table.of(["family", "seeds", *self.figures], lines)], "Seeds", _NOTE)

    def limits(self) -> Iterator[str]:
        """Yield the limits of the answer."""
        if self.unclear:
            yield f"{', '.join(self.unclear)}: the same seed and settings, and yet different weights; no family."
        if not self.all:
            yield "No autoencoder has a twin of another seed: the figures of one training say nothing about another."
            return
        number, pairs = self.apart(_SCORE)
        if number < pairs:
            yield f"Over seeds of training, ranges of {_SCORE} separate {number} of {pairs} pairs of families."


def families_of(entrants: Sequence[SaeEntrant]) -> Families:
    """Return the families of two seeds or more, in the order of their best members."""
    groups = grouped((sae.family, sae) for sae in entrants if sae.family is not None)
    ks = sorted({k for sae in entrants for k in sae.sparse})
    families, unclear = list[Family](), list[str]()
    for members in groups.values():
        ordered = sorted(members, key=lambda sae: (sae.seed or 0, sae.name))
        if max(Counter(sae.seed for sae in members).values()) > 1:
            unclear += [sae.name for sae in ordered]
        elif len(members) > 1:
            families.append(Family(ordered[0].name, tuple(sae.seed or 0 for sae in ordered), _values(ordered, ks)))
    return Families(families, unclear)


def _values(members: Sequence[SaeEntrant], ks: Sequence[int]) -> dict[str, tuple[float, ...] | None]:
    """Return the values of each figure, in the order of the members; None where one has none."""
    figures = {name: [sae.value(metric) for sae in members] for metric, name in _METRICS.items()}
    figures |= {f"sparse probing, k = {k}": [sae.sparse.get(k) for sae in members] for k in ks}
    numbers = {name: tuple(value for value in values if value is not None) for name, values in figures.items()}
    return {name: values if len(values) == len(members) else None for name, values in numbers.items()}
