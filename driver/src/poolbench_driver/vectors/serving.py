"""Serve a vector under the name of a model: what the steerer is sent."""

import re
from pathlib import Path
from typing import Any

from poolbench.directions.vector_files import read_vector_file
from poolbench.errors import InputError
from poolbench.model_folders.folders import list_folder
from poolbench_driver.models import obtain
from poolbench_driver.vectors.card import Application, Vector, unit_vectors
from poolbench_driver.vectors.exporting import refuse_restricted_vector
from poolbench_driver.vectors.importing import model_named, naming, require_same_model


def served_body(
    path: Path,
    name: str | None,
    strength: float | None,
    model: str | None,
    layer: int | None,
    positions: str | None = None,
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Return the body of `POST /steerer/served` for a file of vectors.

    Args:
        name: Default: the concept of the card, or the name of the file.
        strength: In the unit of the card; default: the recommended one.
        model: Default: that of the card.
        layer: The layer of a file that names none; of another, the one to take. None: all.
        positions: `generated`, `all` or `prompt`; default: those of the card.
        force: Take the vector of another model. Its residual norms are those of that model, so the steerer measures.

    Raises:
        InputError: The file cannot be read, is for another model, or says too little.
        RestrictedError: The concept is sensitive.
    """
    with naming(path):
        file = read_vector_file(path)
        carried = Vector.of_file(file)
        card = None if carried is None else carried.card
        if carried is not None:
            refuse_restricted_vector(carried)
        served_model = model or (card.model if card is not None else None)
        if served_model is None:
            raise InputError("the file has no card that names its model; give --model")
        obtain(served_model)
        if not force:
            require_same_model(file, carried, model_named(served_model), "--force takes it where the width fits")
        at_layers = file.at(layer).vectors
        if strength is None:
            strength = None if card is None else card.strength.recommended
        if strength is None:
            reason = "" if card is None or not card.strength.reason else f" ({card.strength.reason})"
            raise InputError(f"no strength is recommended for the vector{reason}; give --strength")
    vectors, _ = unit_vectors({number: vector for number, vector in at_layers.items() if number is not None})
    apply = Application() if card is None else card.apply
    size = "strength" if apply.alpha_unit == "residual_norm" else "alpha"
    norms = {} if force or size == "alpha" else apply.residual_norms or {}
    edits = [
        {"vector": vector.tolist(), "layer": number, size: 1.0, "residual_norm": norms.get(number)}
        for number, vector in vectors.items()
    ]
    return {
        "name": name or re.sub(r"[^A-Za-z0-9._-]", "_", (card and card.concept) or path.stem).lstrip(".") or "vector",
        "model": list_folder(served_model),
        "model_revision": None if force or card is None else card.model_revision,
        "strength": strength,
        "steering": {"edits": edits, "positions": positions or apply.positions},
    }
