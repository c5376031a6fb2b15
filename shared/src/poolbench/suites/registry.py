"""Registry of suites."""

from dataclasses import dataclass

from poolbench.registry import Registry


@dataclass(frozen=True)
class Suite:
    """A benchmark suite.

    Attributes:
        id: Value of the column `suite`.
        version: Raised when the suite's meaning changes.
        summary: One sentence.
        metrics: Metric ids (families such as `d1.direction` stand for their members).
        protocols: Named protocols, the default first.
        reference: Paper or other source.
    """

    id: str
    version: int
    summary: str
    metrics: tuple[str, ...]
    protocols: tuple[str, ...] = ("corrected",)
    reference: str = ""


SUITES = Registry("suite", Suite, group="poolbench.suites", built_in=("poolbench.suites.poolbench_suite",), by_id=True)
