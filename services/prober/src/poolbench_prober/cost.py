"""The cost of probing, computed from sizes before anything is fitted."""

from dataclasses import dataclass

import numpy as np

from poolbench.contracts.bounds import require_at_most
from poolbench.directions.constructions import solved_by_rows
from poolbench.steps.prober import PilotParams, ProbeParams, SparseParams, TaskParams
from poolbench_prober.probing.compression import INNER_FOLDS
from poolbench_prober.probing.mlp import MOST_EPOCHS
from poolbench_prober.probing.published import RECIPES, SEARCHED_EPOCHS

_GIB = 2**30
#: Bytes of the bootstrap for each resample and row: draws, counts and weights, and the running sums of one AUROC.
_RESAMPLED_BYTES = 40
#: Bytes of a discriminant (LDA) for each entry of its square matrix, measured.
_LDA_BYTES = 17
#: Blocks of the online code, each with a probe of its own.
_BLOCKS = 10


@dataclass(frozen=True)
class Limits:
    """The cost allowed for one request or task."""

    products: float  # probes times rows times width: multiplications of one pass over all probes
    memory: float
    remedy: str


REQUEST = Limits(2e10, 2 * _GIB, "send less at a time, or make it a run (`poolbench-driver run`)")
TASK = Limits(2e13, 64 * _GIB, "plan smaller tasks")


@dataclass(frozen=True)
class Cost:
    """The expected cost of one cell."""

    rows: int
    width: int
    probes: int
    columns: int  # labelings that are held at once
    resamples: int
    pairs: float = 0  # bytes for pairs of passages that are compared at once, and for the matrix of a discriminant

    @property
    def products(self) -> float:
        """Return the number of multiplications of one pass over all probes."""
        return float(self.probes) * self.rows * self.width

    @property
    def memory(self) -> float:
        """Return bytes: three copies of vectors and of labels and scores, the bootstrap, and the pairs of an AUROC."""
        matrices = 3 * 8.0 * self.rows * (self.width + self.columns)
        return matrices + _RESAMPLED_BYTES * float(self.rows) * (self.resamples + 1) + self.pairs

    def require(self, limits: Limits) -> None:
        """Raise TooLargeError with the number and the limit if the cost is above `limits`."""
        size = f"{self.probes:,} probes x {self.rows:,} rows x {self.width:,} numbers"
        require_at_most(f"{size} are so many products", self.products, limits.products, limits.remedy)
        held = f"{self.rows:,} rows of {self.width:,} numbers with {self.resamples:,} resamples need bytes"
        require_at_most(held, self.memory, limits.memory, limits.remedy)


def of_concept(rows: int, width: int, domains: np.ndarray, params: ProbeParams, num_layers: int = 1) -> Cost:
    """Return the cost of D1 on vectors of one strategy.

    Args:
        rows: Number of passages of the train split, which is the larger split.
        domains: Domain of each passage; each domain with enough passages costs one probe.
        num_layers: Layers to choose from inside the folds.
    """
    columns = 1 + len(params.sensitivity_c) + params.num_permutations + params.num_control_words
    held_out = int((np.unique(domains, return_counts=True)[1] >= 2 * params.min_domain_class).sum())
    probes = params.folds * (columns + len(params.fold_seeds)) * num_layers + held_out + 1
    probes += params.folds * MOST_EPOCHS * (params.hidden or 0)
    side = rows if solved_by_rows(rows, width) else width
    return Cost(rows, width, probes, columns, params.num_bootstrap, rows**2 / 4 + _LDA_BYTES * side**2)


def of_task(rows: int, width: int, num_classes: int, params: TaskParams) -> Cost:
    """Return the cost of a task with `num_classes` classes, where a regression counts as 1 class."""
    outputs = params.hidden or num_classes  # of the layer that reads the vectors
    if params.hidden is not None:
        fits = MOST_EPOCHS * (1 + bool(params.control))
    elif params.protocol == "corrected":
        fits = len(params.c_values) + 1 + bool(params.control)
    else:
        fits = RECIPES[params.protocol].schedule.num_epochs * (1 + bool(params.control))
    coded = _BLOCKS * len(params.compression_c) if params.compression and params.hidden is None else 0
    probes = len(params.seeds) * outputs * (fits + coded)
    columns = outputs * max(1, len(params.c_values))
    # A score by class holds sums for each resample and class.
    resamples = params.num_bootstrap + params.num_bootstrap * num_classes // max(1, rows)
    return Cost(rows, width, probes, columns, resamples)


def of_pilot(width: int, num_classes: int, params: PilotParams) -> Cost:
    """Return the cost of pilots, whose probes are fitted on all sizes."""
    columns = num_classes * len(params.c_values)
    if params.protocol == "published":
        fits = SEARCHED_EPOCHS * (params.hidden or num_classes)
    elif params.code_length:
        fits = num_classes * len(TaskParams().compression_c) * (1 + INNER_FOLDS)
    else:
        fits = columns if params.hidden is None else MOST_EPOCHS * params.hidden
    probes = len(params.seeds) * params.folds * fits
    return Cost(sum(params.sizes), width, probes, columns, 0)


def of_shift(rows: int, width: int, num_states: int, num_bootstrap: int) -> Cost:
    """Return the cost of a preference shift. The plane of both states costs as much as one probe per dimension."""
    return Cost(rows, width, num_states + 2 * min(2 * rows, width), 1, num_bootstrap)


def of_contrast(num_subjects: int, num_bootstrap: int) -> Cost:
    """Return the cost of the bootstrap of a contrast, without its features, which are counted on reading."""
    return Cost(num_subjects, 1, 1, 1, num_bootstrap)


def of_sparse(rows: int, params: SparseParams) -> Cost:
    """Return the cost of sparse probes, without the features, which are counted on reading."""
    probes = len(params.ks) * (params.folds * (1 + len(params.fold_seeds)) + 1)
    return Cost(rows, max(params.ks), probes, len(params.ks), params.num_bootstrap)
