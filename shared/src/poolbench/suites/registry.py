"""The registry of suites: what can be run, as metadata."""

from __future__ import annotations

from dataclasses import dataclass

from poolbench.registry import Registry


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


SUITES = Registry("suite", Suite, group="poolbench.suites", built_in=("poolbench.suites.poolbench_suite",))


def register_suite(suite: Suite) -> Suite:
    """Adds a suite.

    Raises:
        ConfigError: If its id is taken.
    """
    return SUITES.add(suite)


def get_suite(suite_id: str) -> Suite:
    """The suite with this id.

    Raises:
        UnknownNameError: With the nearest known ids.
    """
    return SUITES.get(suite_id)


def all_suites() -> dict[str, Suite]:
    """Every suite by id, those of the entry points ``poolbench.suites`` included, ordered by id."""
    return {suite.id: suite for suite in sorted(SUITES.all(), key=lambda suite: suite.id)}
