"""An estimated quantity with its range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Range(NamedTuple):
    """An expected value, and the bounds that it should lie within."""

    expected: float
    low: float
    high: float

    @classmethod
    def around(cls, expected: float, low: float, high: float) -> Range:
        """Return a range from factors of the expected value."""
        return cls(expected, expected * low, expected * high)

    def times(self, factor: float) -> Range:
        """Return the quantity multiplied by a known number."""
        return Range(self.expected * factor, self.low * factor, self.high * factor)

    def rounded(self) -> dict[str, float]:
        """Return the values with four significant digits, as JSON output shows them."""
        return {name: float(f"{value:.4g}") for name, value in self._asdict().items()}


def total(ranges: Iterable[Range]) -> Range:
    """Return the sum. Its bounds are the sums of the bounds, because errors of an estimate are rarely independent."""
    found = list(ranges)
    return Range(*(sum(getattr(each, name) for each in found) for name in Range._fields))
