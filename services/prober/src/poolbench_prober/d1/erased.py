"""D1 after directions were erased from the vectors: how much of a concept a probe still reads without them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.directions.erasure import Leace, without_directions
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import ERASED_NOTHING, LEACE, ProbeParams
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

METRIC = "necessity.auroc"


def erased_measures(
    train: tuple[Passages, PooledVectors] | None,
    test: tuple[Passages, PooledVectors],
    erased: Mapping[str, np.ndarray],
    params: ProbeParams,
) -> list[Measure]:
    """Return the AUROC of probes on test passages: with nothing erased, with each subspace erased, and with LEACE.

    Probes are fitted and read in grouped folds of the test passages, which were not used for the directions. The AUROC
    therefore measures the remaining information, also for a probe that is fitted after the erasure.

    Args:
        train: Passages and vectors on which LEACE is fitted. If None, LEACE is left out.
        erased: Directions [k, D] by name. All directions of a name are erased together.
    """
    (passages, vectors), names = test, (ERASED_NOTHING, *erased, *([LEACE] if train else []))
    fields = {"n": len(passages.ids), "num_groups": len(np.unique(passages.groups)), "seed": params.seed}
    try:
        if vectors.readout is not None:
            reason = f"the strategy chooses its vector with a readout ({vectors.readout}), which erasing would change"
            raise CellError(Status.FAILED, reason)
        train_rows = train[1].require_usable(train[0].labels) if train else None
        vectors.require_usable(passages.labels)
    except CellError as error:
        return [Measure.failed(METRIC, error, params={"erased": name}, **fields) for name in names]
    matrix_nD, design = vectors.matrix_nW, Design.build(passages, None, params)
    changed = {ERASED_NOTHING: matrix_nD}
    changed |= {name: without_directions(matrix_nD, directions) for name, directions in erased.items()}
    if train is not None and train_rows is not None:
        changed[LEACE] = Leace.fit(train[1].matrix_nW[train_rows], train[0].labels[train_rows]).apply(matrix_nD)
    measures = []
    for name in names:
        result = probe_cell(design, replace(vectors, matrix_nW=changed[name]), None, params)
        (auroc,) = (measure for measure in result.measures if measure.metric == "d1.auroc")
        measures.append(auroc.with_fields(metric=METRIC, params={"erased": name}))
    return measures
