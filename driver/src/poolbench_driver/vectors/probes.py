"""The probe of a run as a request of the steerer: weights, and the offset, which the store does not keep."""

from typing import Any

import numpy as np

from poolbench.concepts import refuse_restricted
from poolbench.errors import InputError, NotFoundError
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.roles import Cell, SplitCell
from poolbench.storage import Artifacts
from poolbench_driver.records import Run
from poolbench_driver.stages.plan import ConceptsPlan

#: The construction whose vector is the weights of the converged probe.
_WEIGHTS = "C3"


def probe_of_run(
    folder: Run, plan: ConceptsPlan, artifacts: Artifacts, concept: str, strategy: str | None, layer: int | None
) -> dict[str, Any]:
    """Return the body of `POST /steerer/served/probes` for the run's probe of a concept.

    Args:
        plan: Plan of the run.
        strategy: Strategy of the probe. By default, strategy and layer have the highest AUROC.

    Raises:
        NotFoundError: The run has no such probe, or it did not converge.
        InputError: The probe does not read pooled states as they are.
        RestrictedError: The probe was made from passages of a sensitive concept.
    """
    cell = _cell(folder, plan, concept, strategy, layer)
    spec = STRATEGIES.get(cell.strategy)
    if spec.readout is not None or spec.common_component:
        raise InputError(f"{spec.id} changes states by more than weights, so its probe reads no single state")
    of_concept = plan.vectors.concepts[concept]
    key = plan.probes.concepts[concept].directions[cell]
    inputs = of_concept.vectors[SplitCell("train", *cell)], of_concept.passages["train"]
    refuse_restricted(f"the probe of {concept}", [key, *inputs])
    rows = {row["direction_id"]: row for row in artifacts.read_table(key).to_pylist()}
    row = rows.get(_WEIGHTS)
    if row is None or row["vector"] is None:
        reason = "the run did not make it" if row is None else f"{row['status']}: {row['reason']}"
        raise NotFoundError(f"{concept} by {cell.strategy} at layer {cell.layer} has no probe: {reason}")
    weights = row["raw_norm"] * np.asarray(row["vector"], np.float64)
    vectors, passages = (artifacts.read_table(name) for name in inputs)
    label_by_id = dict(zip(passages["passage_id"].to_pylist(), passages["label"].to_pylist(), strict=True))
    pooled = zip(vectors["passage_id"].to_pylist(), vectors["vector"].to_pylist(), strict=True)
    usable = {name: vector for name, vector in pooled if vector is not None and np.isfinite(vector).all()}
    labels = np.array([label_by_id[name] for name in usable])
    margins = np.array(list(usable.values())) @ weights
    ref = plan.scope.model.ref
    return {
        **{"concept": concept, "strategy": cell.strategy, "layer": cell.layer, "run": folder.id},
        **{"model": ref.id, "model_revision": ref.revision},
        **{"weights": weights.tolist(), "offset": offset_of(margins, labels)},
    }


def offset_of(margins: np.ndarray, labels: np.ndarray) -> float:
    """Return the unpenalised intercept b of a logistic probe, at which the mean of sigma(w.x + b) equals the labels'.

    The loss of the probe (`poolbench_prober.solver`) is minimal only there. The mean rises with b, so that bisection
    finds b.

    Args:
        margins: w.x of the training rows.
        labels: 0 or 1.
    """
    low, high = -margins.max() - 50.0, -margins.min() + 50.0
    for _ in range(100):
        middle = (low + high) / 2
        too_high = (0.5 + 0.5 * np.tanh(0.5 * (margins + middle))).sum() > labels.sum()
        low, high = (low, middle) if too_high else (middle, high)
    return float((low + high) / 2)


def _cell(folder: Run, plan: ConceptsPlan, concept: str, strategy: str | None, layer: int | None) -> Cell:
    """Return the fitting strategy and layer with the highest AUROC."""
    cells = list(plan.probes.concepts[concept].directions)
    fitting = [cell for cell in cells if strategy in (None, cell.strategy) and layer in (None, cell.layer)]
    if not fitting:
        names = ", ".join(f"{cell.strategy} at layer {cell.layer}" for cell in cells[:8])
        raise NotFoundError(f"run {folder.id} has no such probe of {concept}; it has {names}")
    rows = folder.rows("results", metric="d1.auroc", concept=concept, protocol="corrected")
    auroc = {Cell(row["strategy"], row["layer"]): row["value"] for row in rows if row["value"] is not None}
    return max(fitting, key=lambda cell: auroc.get(cell, 0.0))
