"""The registry of suites: what can be run, as metadata."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from poolbench.errors import UnknownNameError


@dataclass(frozen=True)
class Suite:
    """A benchmark suite.

    Attributes:
        id: Value of the column ``suite``.
        version: Raised when the suite's meaning changes.
        summary: One sentence.
        metrics: Metric ids (families such as ``d1.direction`` stand for their members).
        protocols: Named protocols, the default first.
        reference: Where it comes from.
    """

    id: str
    version: int
    summary: str
    metrics: tuple[str, ...]
    protocols: tuple[str, ...] = ("corrected",)
    reference: str = ""


_SUITES: dict[str, Suite] = {}


def register_suite(suite: Suite) -> Suite:
    """Adds a suite.

    Raises:
        ValueError: If its id is taken.
    """
    if suite.id in _SUITES:
        raise ValueError(f"suite {suite.id!r} is already registered")
    _SUITES[suite.id] = suite
    return suite


def get_suite(suite_id: str) -> Suite:
    """The suite with this id.

    Raises:
        UnknownNameError: With the nearest known ids.
    """
    suites = all_suites()
    if suite_id not in suites:
        raise UnknownNameError("suite", suite_id, suites)
    return suites[suite_id]


def all_suites() -> dict[str, Suite]:
    """Every suite by id, those of the entry points ``poolbench.suites`` included."""
    return dict(sorted({**_plugins(), **_SUITES}.items()))


@cache
def _plugins() -> dict[str, Suite]:
    suites = [point.load() for point in entry_points(group="poolbench.suites")]
    return {suite.id: suite for suite in suites}
