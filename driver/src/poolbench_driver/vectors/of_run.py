"""The vector of a run's direction, with what the run measured of it as its card."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.concepts import refuse_restricted, refuse_sensitive
from poolbench.config import ModelRef, resolve_model
from poolbench.contracts import Row
from poolbench.errors import IntegrityError, NotFoundError, PoolbenchError
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.models import MODEL_LICENCES, model_type
from poolbench_driver.pages.text import listed
from poolbench_driver.records import Run, recall_concepts
from poolbench_driver.records.record import RunRecords
from poolbench_driver.vectors.card import (
    Application,
    CardMeasure,
    Source,
    Strength,
    Vector,
    VectorCard,
    made_here,
    sha256_of_vectors,
    unit_vector,
    vector_name,
)

_CALIBRATION = "extractor.calibrate."
_SHOWN = 8
#: Settings of rows that hold a part of a figure, such as one domain.
_PARTS = ("C", "domain", "part", "of", "scp")


def directions_of(run: Run) -> list[Row]:
    """Return the directions of a run. For each concept, the best direction comes first."""
    return run.rows("directions")


def recommended_strengths(run: Run) -> dict[tuple[str, str, int], float]:
    """Return the strength of the best gain by concept, strategy and layer, in residual norms."""
    rows = run.rows("results", metric="d2.best_strength", protocol="corrected")
    return {(row["concept"], row["strategy"], row["layer"]): row["value"] for row in rows if row["value"] is not None}


def vector_of_run(
    run: Run,
    artifacts: Artifacts,
    concept: str,
    strategy: str | None = None,
    layer: int | None = None,
    construction: str | None = None,
) -> Vector:
    """Return the best direction of a run that has these names.

    Args:
        construction: A construction that the run made. By default, the construction that the run steered along.

    Raises:
        RestrictedError: The concept is sensitive, or the direction was made from passages of a sensitive concept.
        NotFoundError: The run or the object store has no such direction.
    """
    recall_concepts(run)
    refuse_sensitive([concept])
    row = _row_of(run, concept, strategy, layer, construction)
    refuse_restricted(f"the direction of {concept}", [row["key"]])
    row = {**row, "construction": construction or row["construction"]}
    vectors = {row["layer"]: unit_vector(_read(artifacts, row))}
    return Vector(_card(run, artifacts, row, vectors), vectors)


def _row_of(run: Run, concept: str, strategy: str | None, layer: int | None, construction: str | None) -> Row:
    """Return the best direction that fits, preferring the first one with the given construction."""
    rows = directions_of(run)
    of_concept = [row for row in rows if row["concept"] == concept]
    fitting = [
        row for row in of_concept if strategy in (None, row["strategy"]) and layer in (None, row["layer"])
    ]  # fmt: skip
    if fitting:
        return next((row for row in fitting if row["construction"] == construction), fitting[0])
    if of_concept:
        there_are = listed(dict.fromkeys(f"{row['strategy']} at layer {row['layer']}" for row in of_concept), _SHOWN)
    else:
        there_are = f"those of {', '.join(dict.fromkeys(row['concept'] for row in rows)) or 'no concept'}"
    by = f" by {strategy}" if strategy else ""
    at = "" if layer is None else f" at layer {layer}"
    raise NotFoundError(f"run {run.id} has no direction of {concept}{by}{at}; there are {there_are}")


def _read(artifacts: Artifacts, row: Row) -> np.ndarray:
    vector_by_construction = {
        entry["direction_id"]: entry["vector"] for entry in artifacts.read_table(row["key"]).to_pylist()
    }
    vector = vector_by_construction.get(row["construction"])
    if vector is None:
        names = ", ".join(name for name, numbers in vector_by_construction.items() if numbers is not None) or "none"
        cell = f"{row['concept']} by {row['strategy']} at layer {row['layer']}"
        raise NotFoundError(f"{cell} has no {row['construction']}; made are {names}")
    return np.asarray(vector, np.float32)


def _card(run: Run, artifacts: Artifacts, row: Row, vectors: Mapping[int, np.ndarray]) -> VectorCard:
    model = run.model
    if model is None:
        raise NotFoundError(f"run {run.id} has not started: nothing says how deep its model is")
    figures = list(_figures(run, row))
    cell_by_metric = {figure["metric"]: figure["cell_id"] for figure in figures}
    strategy = row["strategy"].partition(":")[0]
    return VectorCard(
        name=vector_name(row["model"], row["concept"]),
        concept=row["concept"],
        model=row["model"],
        model_revision=row["model_revision"],
        architecture=_architecture(row["model"]),
        width=model.width,
        num_blocks=model.num_blocks,
        layers=tuple(vectors),
        strategy=row["strategy"],
        strategy_params=_params(strategy),
        construction=row["construction"],
        apply=_application(run, _residual_norms(run, artifacts, list(vectors))),
        strength=_strength(run, row, figures),
        source=Source(
            tool=made_here(),
            run=run.id,
            cell=cell_by_metric.get("d2.best_gain", cell_by_metric.get("d1.auroc")),
            artifact=row["key"],
        ),
        licence=MODEL_LICENCES.get(row["model"], "unknown"),
        vectors_sha256=sha256_of_vectors(vectors),
        measures=tuple(_measure(figure) for figure in figures),
    )


def _architecture(model: str) -> str | None:
    try:
        return model_type(resolve_model(model))
    except PoolbenchError:  # the model is not on this machine
        return model_type(ModelRef(model, model))


def _params(strategy: str) -> dict[str, Any]:
    """Return the parameters of a strategy as JSON. The concept's own words are left out."""
    try:
        params = STRATEGIES.get(strategy).params
    except PoolbenchError:  # it came from a package that is not installed here
        return {}
    return dict(json.loads(json.dumps({name: value for name, value in params.items() if name != "triggers"})))


def _figures(run: Run, row: Row) -> Iterator[Row]:
    """Yield the figures of D1, D2 and D3 of a direction. Figures of parts of the direction are left out."""
    at = {name: row[name] for name in ("concept", "strategy", "layer")}
    for figure in run.rows("results", **at, protocol="corrected"):
        is_of_direction = figure["direction"] in (None, row["construction"])
        is_part = not json.loads(figure["params"] or "{}").keys().isdisjoint(_PARTS)
        if figure["metric"].startswith(("d1.", "d2.", "d3.")) and is_of_direction and not is_part:
            yield figure


def _measure(figure: Row) -> CardMeasure:
    of = f"/{figure['neighbour']}" if figure["neighbour"] else ""
    return CardMeasure.of_row(f"{figure['metric']}{of}", figure)


def _strength(run: Run, row: Row, figures: list[Row]) -> Strength:
    """Return the strength of the best gain, and the range in which texts stayed fluent."""
    best = next((figure for figure in figures if figure["metric"] == "d2.best_strength"), None)
    at = {name: row[name] for name in ("concept", "strategy", "layer")}
    fluent = max((point["strength"] for point in run.rows("curves", **at) if point["fluent"]), default=None)
    if best is None:
        return Strength(reason=f"run {run.id} did not steer along it")
    is_known = best["value"] is not None and fluent is not None
    reason = None if is_known else best["reason"] or "no strength of the run gave fluent texts"
    low = None if fluent is None else 0.0
    return Strength(recommended=best["value"], safe_low=low, safe_high=fluent, reason=reason)


def _application(run: Run, norms: dict[int, float] | None) -> Application:
    """Return how the run has steered. Runs of other suites have no such record."""
    config = run.config
    if not isinstance(config, ConceptsConfig):
        return Application(residual_norms=norms)
    unit, positions = config.budget.alpha_unit, config.steering.positions
    return Application(alpha_unit=unit, residual_norms=norms, positions=positions)


def _residual_norms(run: Run, artifacts: Artifacts, layers: list[int]) -> dict[int, float] | None:
    """Return the calibration norms of layers, or None if the run did not measure them or the store lost them."""
    try:
        keys = sorted(key for key in RunRecords(artifacts.store).keys(run.id) if key.startswith(_CALIBRATION))
        tables: list[pa.Table] = [artifacts.read_table(key) for key in keys]
    except (NotFoundError, IntegrityError):
        return None
    norms = {row["layer"]: row["median_residual_norm"] for table in tables for row in table.to_pylist()}
    return {layer: norms[layer] for layer in layers} if norms.keys() >= set(layers) else None
