"""The suites: those of this project, and those of other packages by the entry point `poolbench.suites`."""

from typing import Any

from poolbench.registry import Registry
from poolbench_driver.suites.suite import Suite

SUITES: Registry[Suite[Any, Any, Any]] = Registry(
    "suite",
    Suite,
    group="poolbench.suites",
    built_in=("poolbench_driver.suites.poolbench", "poolbench_driver.suites.planted"),
)
