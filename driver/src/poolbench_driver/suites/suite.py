"""What a suite adds to a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench.config import RunConfig
    from poolbench.storage.base import ObjectStore
    from poolbench_driver.rundir import RunFolder


def _nothing_to_say(config: RunConfig, folder: RunFolder, tables: Mapping[str, pa.Table]) -> str:
    """Return that nothing is wrong."""
    return ""


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        settings: Settings that its runs start from.
        register: Called before names are resolved; puts what the suite brings into the store, or raises ConfigError;
            None where a suite brings nothing.
        conclude: Called with the tables of a run; returns what is wrong with them, "" for nothing.
        brings_all: Whether its runs need no corpus, scorers or model from outside.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    register: Callable[[RunConfig, ObjectStore], None] | None = None
    conclude: Callable[[RunConfig, RunFolder, Mapping[str, pa.Table]], str] = _nothing_to_say
    brings_all: bool = False
