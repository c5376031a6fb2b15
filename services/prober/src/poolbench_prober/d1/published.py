"""D1 as the benchmark's reference defines it, for comparison with published cells; never ranked with our own figures.

Vectors of unit norm; ungrouped stratified 5-fold, shuffled with seed 42; each held-out passage is projected on the unit
difference of means of the other folds; one AUROC over the scores of all folds together; a percentile interval over
resampled passages. The members of a matched pair fall into different folds, which drags the direction away from the
held-out member: matched concepts come out below .5 by construction, and no alarm is raised for it.

Rows stay in the order of the passages: the folds of scikit-learn's `StratifiedKFold` depend on it. As in the reference,
coverage and groups are not used.
"""

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.directions import Direction
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import bootstrap_counts, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.prober import ProbeParams
from poolbench_prober.d1.cell import CellResult, common_fields, score_rows
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

SEED = 42
NUM_FOLDS = 5
CI_METHOD = "bootstrap over passages of the pooled out-of-fold scores, percentile"


def published_cell(passages: Passages, vectors: PooledVectors, params: ProbeParams) -> CellResult:
    """Return `d1.auroc` of the reference, its scores, and the direction C1 of all unit vectors.

    Only the parameter `num_bootstrap` is read. Folds and seeds are fixed. If the vectors cannot be used, the measure is
    null. Strategies that learn a readout have no published figure.
    """
    fields = {**common_fields(passages, vectors, params), "seed": SEED}
    try:
        if vectors.readout is not None:
            reason = f"the published protocol reads vectors as they are, not through {vectors.readout}"
            raise CellError(Status.NOT_IMPLEMENTED, reason)
        rows = vectors.require_present()
        usable = passages.take(rows)
        fields |= {"n": len(rows), "num_groups": len(rows)}
        unit_nD = unit_rows(vectors.matrix_nW[rows])
        folds = stratified_folds(usable.labels)
    except CellError as error:
        return CellResult([Measure.failed("d1.auroc", error, **fields)], {"C1": error}, [])
    scores = projections(unit_nD, usable.labels, folds)
    value = auroc(usable.labels, scores)
    counts = bootstrap_counts(len(rows), params.num_bootstrap, SEED)
    interval = percentile_interval(auroc_resamples(usable.labels, scores, counts))
    alarm = "collapsed: all passages have the same unit vector" if np.ptp(unit_nD, axis=0).max() < 1e-6 else None
    measure = Measure.of("d1.auroc", value, interval, ci_method=CI_METHOD, reason=alarm, **fields)
    return CellResult(
        [measure], {"C1": _direction(unit_nD, usable.labels)}, list(score_rows(usable, "train", folds, scores))
    )


def unit_rows(matrix_nD: np.ndarray) -> np.ndarray:
    """Scale rows to unit norm. A zero row stays zero."""
    norms = np.sqrt(np.square(matrix_nD).sum(axis=1, keepdims=True))
    return np.asarray(matrix_nD / np.where(norms > 0, norms, 1.0))


def stratified_folds(labels: np.ndarray) -> np.ndarray:
    """Return the folds of `StratifiedKFold(5, shuffle=True, random_state=42)`.

    Raise CellError if there is one class, or if a class is too small.
    """
    from sklearn.model_selection import StratifiedKFold

    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise CellError(Status.ONE_CLASS, f"all {len(labels)} passages have the label {classes.tolist()}")
    if counts.min() < NUM_FOLDS:
        raise CellError(Status.TOO_FEW, f"a class has {counts.min()} passages for {NUM_FOLDS} folds")
    folds = np.empty(len(labels), dtype=int)
    splitter = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=SEED)
    for fold, (_, held) in enumerate(splitter.split(np.zeros(len(labels)), labels)):
        folds[held] = fold
    return folds


def projections(unit_nD: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the score of each row: its projection on C1 of the other folds, or 0 if the class means are equal.

    The code uses sums and not BLAS, whose bits depend on the number of threads and the position of the row.
    """
    scores = np.empty(len(labels))
    for fold in range(NUM_FOLDS):
        held = folds == fold
        difference = _difference(unit_nD[~held], labels[~held])
        norm = _norm(difference)
        unit_D = difference / norm if norm > 0 else difference
        scores[held] = (unit_nD[held] * unit_D).sum(axis=1)
    return scores


def _difference(unit_nD: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray(unit_nD[labels == 1].mean(axis=0) - unit_nD[labels == 0].mean(axis=0))


def _norm(vector_D: np.ndarray) -> float:
    return float(np.sqrt(np.square(vector_D).sum()))


def _direction(unit_nD: np.ndarray, labels: np.ndarray) -> Direction | CellError:
    difference = _difference(unit_nD, labels)
    norm = _norm(difference)
    if norm == 0:
        return CellError(Status.COLLAPSED, "direction C1 is zero: the classes do not differ")
    return Direction("C1", difference / norm, norm)
