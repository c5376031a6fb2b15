"""Serve a vector under the name of a model: what the steerer is sent."""

import re
from typing import Any, Literal

from poolbench.errors import InputError
from poolbench.model_folders.folders import list_folder
from poolbench_driver.vectors.card import Limit, Vector
from poolbench_driver.vectors.exporting import refuse_restricted_vector

#: What happens to a strength outside the limit of the card.
Beyond = Literal["refuse", "lower", "serve"]


def served_body(
    vector: Vector,
    name: str | None,
    strength: float | None,
    positions: str | None,
    *,
    force: bool = False,
    beyond: Beyond = "refuse",
) -> dict[str, Any]:
    """Return the body of `POST /steerer/served`. By default, the card sets name, strength and positions.

    Args:
        force: Accept any revision of the model. The steerer then measures residual norms, because the card's may not
            apply.
        beyond: Refuse a strength outside the limit of the card, lower it to the limit, or serve it all the same.

    Raises:
        InputError: No strength is named, and the card recommends none; or the strength is outside the limit.
        RestrictedError: The concept is sensitive.
    """
    refuse_restricted_vector(vector)
    card = vector.card
    strength = card.strength.recommended if strength is None else strength
    if strength is None:
        raise InputError(f"no strength is recommended for {card.name}: {card.strength.reason}; give --strength")
    strength, limit = _within(card.limit, strength, beyond), card.limit
    positions = positions or card.apply.positions
    size = "strength" if card.apply.alpha_unit == "residual_norm" else "alpha"
    norms = {} if force or size == "alpha" else card.apply.residual_norms or {}
    edits = [
        {"vector": numbers.tolist(), "layer": layer, size: 1.0, "residual_norm": norms.get(layer)}
        for layer, numbers in vector.vectors.items()
    ]
    body = {
        "name": name or re.sub(r"[^A-Za-z0-9._-]", "_", card.concept or card.name.rpartition("+")[2]).lstrip("."),
        **{"model": list_folder(card.model), "model_revision": None if force else card.model_revision},
        **{"strength": strength, "steering": {"edits": edits, "positions": positions}},
    }
    # The limit holds for the weights and the positions that it was measured with.
    if limit is not None and not force and positions == card.apply.positions:
        body["limit"] = limit.model_dump(include={"strength", "wrong_way", "fall", "perplexity_ratio", "alpha"})
    return body


def _within(limit: Limit | None, strength: float, beyond: Beyond) -> float:
    """Return the strength, or the limit in its place. Raise InputError if the strength is refused."""
    outside = None if limit is None else limit.outside([strength])
    if limit is None or outside is None or beyond == "serve":
        return strength
    if beyond == "refuse":
        raise InputError(f"{outside}; --lower serves the limit, --beyond-limit this strength")
    if limit.strength is None or strength < 0:
        raise InputError(f"{outside}; it cannot be lowered to the limit, --beyond-limit serves this strength")
    return limit.strength
