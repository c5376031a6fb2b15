"""Turn a file of vectors into a vector with a card, after a check that it fits the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.config import ModelRef, resolve_model
from poolbench.directions.vector_files import VectorFile, read_vector_file
from poolbench.errors import InputError, PoolbenchError, shown
from poolbench_driver.dataset_folder import sha256_of
from poolbench_driver.models import MODEL_LICENCES, ModelInfo, model_type
from poolbench_driver.vectors.card import (
    Application,
    Source,
    Strength,
    Vector,
    VectorCard,
    sha256_of_vectors,
    vector_name,
)

_NO_STRENGTH = "the file names none; `poolbench-driver steer` shows what a strength does"
_REMEDY = "--force takes it where the width fits"


def import_vector(
    path: Path, model: ModelInfo, layer: int | None = None, *, force: bool = False, remedy: str = _REMEDY
) -> Vector:
    """Return the vector of a file as a vector of a model, with the sizes that its layers have in this model.

    Args:
        layer: Block whose output the vector is for. If the file names layers, the layer to take; by default all.
        force: Take a vector of another model if its width fits.
        remedy: Advice in the error for a vector of another model.

    Raises:
        InputError: The file cannot be read, or does not fit the model.
    """
    with _naming(path):
        file = read_vector_file(path)
        carried = Vector.of_file(file)
        if not force:
            require_same_model(file, carried, model.ref, remedy)
        file = file.at(layer)
        _require_fit(file, model)
    vectors = {number: vector for number, vector in file.vectors.items() if number is not None}
    of_model: dict[str, Any] = {
        "model": model.ref.id,
        "model_revision": model.ref.revision,
        "architecture": model_type(model.ref),
        "num_blocks": model.num_blocks,
        "layers": tuple(vectors),
        "vectors_sha256": sha256_of_vectors(vectors),
    }
    if carried is not None:
        return Vector(carried.card.model_copy(update=of_model), vectors)
    source = Source(
        tool=file.format,
        file=path.name,
        file_sha256=sha256_of(path) if path.is_file() else None,
        norms={number: float(np.linalg.norm(vector.astype(np.float64))) for number, vector in vectors.items()},
    )
    card = VectorCard(
        name=file.label or vector_name(model.ref.id, path.stem),
        width=model.width,
        apply=Application(alpha_unit="absolute"),
        strength=Strength(reason=_NO_STRENGTH),
        source=source,
        licence=MODEL_LICENCES.get(model.ref.id, "unknown"),
        **of_model,
    )
    return Vector(card, vectors)


def read_for_model(path: Path, model: str | None, layer: int | None) -> dict[int, np.ndarray]:
    """Return the vectors of a file by layer as they are, float32 [width], to steer with at once.

    Args:
        model: Name of the model. A file that names another model is refused. If None, the model is not checked.
        layer: The layer of the vector if the file names no layers, or else the layer to take.

    Raises:
        InputError: The file cannot be read, has no vector of this layer, or is for another model.
    """
    with _naming(path):
        file = read_vector_file(path)
        if model is not None:
            require_same_model(file, Vector.of_file(file), reference_of(model), "`vectors import --force` takes it")
        return {number: vector for number, vector in file.at(layer).vectors.items() if number is not None}


def read_with_card(path: Path) -> Vector | None:
    """Return the vector of a file that contains its card, or None. Raise InputError as `read_for_model` does."""
    with _naming(path):
        return Vector.of_file(read_vector_file(path))


def reference_of(model: str) -> ModelRef:
    """Return a model by its name. The revision is missing if only the services know the model."""
    try:
        return resolve_model(model)
    except PoolbenchError:  # it is where the services are
        return ModelRef(model, model)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors begin with the path of the file."""
    try:
        yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def require_same_model(file: VectorFile, carried: Vector | None, ref: ModelRef, remedy: str) -> None:
    """Raise InputError, with a remedy, if a file names another model. A file without a model's name passes."""
    if carried is not None:
        require_model_of(carried.card, ref, remedy)
        return
    architecture = model_type(ref)
    if None not in (file.architecture, architecture) and file.architecture != architecture:
        raise InputError(
            f"the vector is of a model of type {shown(file.architecture)}, and {ref.id} is of {architecture}; {remedy}"
        )
    if file.model is not None and _last_part(file.model) != _last_part(ref.id):
        raise InputError(f"the vector is of the model {shown(file.model)}, not of {ref.id}; {remedy}")


def require_model_of(card: VectorCard, ref: ModelRef, remedy: str) -> None:
    """Raise InputError, with a remedy, if a vector is of other weights: by revision, or by name without revisions."""
    if None not in (card.model_revision, ref.revision) and card.model_revision != ref.revision:
        raise InputError(
            f"the vector is of {card.model} at revision {card.model_revision}, and {ref.id} is at "
            f"{ref.revision}; {remedy}"
        )
    if card.model != ref.id and None in (card.model_revision, ref.revision):
        raise InputError(f"the vector is of {card.model}, not of {ref.id}; {remedy}")


def _last_part(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2].lower()


def _require_fit(file: VectorFile, model: ModelInfo) -> None:
    for layer, vector in file.vectors.items():
        if vector.size != model.width:
            raise InputError(f"the vector has width {vector.size}; {model.ref.id} has {model.width}")
        if layer is None or not 0 <= layer < model.num_blocks:
            raise InputError(f"layer {layer} is out of range; {model.ref.id} has blocks 0 to {model.num_blocks - 1}")
