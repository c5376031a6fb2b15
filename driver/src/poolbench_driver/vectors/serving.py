"""Serve a vector under the name of a model: what the steerer is sent."""

import re
from typing import Any

from poolbench.errors import InputError
from poolbench.model_folders.folders import list_folder
from poolbench_driver.vectors.card import Vector
from poolbench_driver.vectors.exporting import refuse_restricted_vector


def served_body(
    vector: Vector, name: str | None, strength: float | None, positions: str | None, *, force: bool = False
) -> dict[str, Any]:
    """Return the body of `POST /steerer/served`. By default, the card sets name, strength and positions.

    Args:
        force: Accept any revision of the model. The steerer then measures residual norms, because the card's may not
            apply.

    Raises:
        InputError: No strength is named, and the card recommends none.
        RestrictedError: The concept is sensitive.
    """
    refuse_restricted_vector(vector)
    card = vector.card
    strength = card.strength.recommended if strength is None else strength
    if strength is None:
        raise InputError(f"no strength is recommended for {card.name}: {card.strength.reason}; give --strength")
    size = "strength" if card.apply.alpha_unit == "residual_norm" else "alpha"
    norms = {} if force or size == "alpha" else card.apply.residual_norms or {}
    edits = [
        {"vector": numbers.tolist(), "layer": layer, size: 1.0, "residual_norm": norms.get(layer)}
        for layer, numbers in vector.vectors.items()
    ]
    return {
        "name": name or re.sub(r"[^A-Za-z0-9._-]", "_", card.concept or card.name.rpartition("+")[2]).lstrip("."),
        **{"model": list_folder(card.model), "model_revision": None if force else card.model_revision},
        **{"strength": strength, "steering": {"edits": edits, "positions": positions or card.apply.positions}},
    }
