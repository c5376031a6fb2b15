"""The unit of the strengths of a vector, and the strength that is recommended."""

from pathlib import Path
from typing import Any

from poolbench.errors import InputError, unknown_name_message

RESIDUAL_NORM = "residual_norm"
#: Fields of an edit by the unit of its size.
UNITS = {"absolute": "alpha", RESIDUAL_NORM: "strength"}


def field_of(unit: str) -> str:
    """Return the field of an edit that has a strength in this unit. Raise InputError for another unit."""
    if unit not in UNITS:
        raise InputError(unknown_name_message("unit", unit, UNITS))
    return UNITS[unit]


def unit_of(vector: Any, unit: str | None) -> str:
    """Return the unit of strengths: the given unit, or the unit of the card. Files without a card are absolute."""
    card = getattr(vector, "card", None)
    return unit or (card.apply.alpha_unit if card else "absolute" if isinstance(vector, Path | str) else RESIDUAL_NORM)


def recommended(vector: Any, unit: str) -> float | None:
    """Return the strength that the card recommends in a unit. Otherwise, return 1 if the unit is absolute, or None."""
    card = getattr(vector, "card", None)
    strength = card.strength.recommended if card and card.apply.alpha_unit == unit else None
    return 1.0 if strength is None and unit == "absolute" else strength
