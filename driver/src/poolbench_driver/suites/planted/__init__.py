"""The planted suite: texts and a model where the definitions alone say which strategies read a signal.

`words` has the vectors, `signals` what is expected, `passages` the texts, `judge` the comparison. The rest is D1 of
PoolBench.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Conclusion
from poolbench_driver.suites.poolbench import PoolBench

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.cluster.session import Session
    from poolbench_driver.config import ConceptsConfig
    from poolbench_driver.contract.suite import Need
    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.scope import Scope


class Planted(PoolBench):
    """A check of the strategies themselves: a strategy that does not find what it must find fails the run."""

    id = "planted"
    summary = "do the strategies find signals whose places are known? texts and a model made for it"
    reference = citation = revision = licence = ""
    dataset = "texts that the suite writes"
    metrics = ()  # those of PoolBench

    def settings(self) -> Mapping[str, Any]:
        """Return what the suite measures, and all that it can."""
        from poolbench_driver.suites.planted.register import SETTINGS

        return SETTINGS

    def check(self, config: ConceptsConfig) -> None:
        """Do nothing: its concepts are registered later."""

    def missing(self, config: ConceptsConfig, session: Session) -> list[Need]:
        """Return nothing: the suite brings what it needs."""
        return []

    def resolve(self, config: ConceptsConfig, session: Session, model: ModelInfo | None = None) -> Scope:
        """Put the suite's concepts into the store, and return what is measured."""
        from poolbench_driver.suites.planted.register import register

        register(config, session.artifacts.store)
        return super().resolve(config, session, model)

    def conclude(self, tables: Mapping[str, pa.Table], config: ConceptsConfig) -> Conclusion:
        """Return every expectation with what was measured, and what does not hold."""
        from poolbench_driver.suites.planted.judge import conclude

        return conclude(tables["results"].to_pylist(), config.strategies)


SUITES.add(Planted())
