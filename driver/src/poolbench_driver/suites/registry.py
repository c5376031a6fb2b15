"""The suites: each folder beside this file, and those of other packages by the entry point `poolbench.suites`."""

from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from poolbench.registry import Registry
from poolbench_driver.suites.suite import Suite

#: The folder here that is not a suite.
_SHARED = "boards"

SUITES: Registry[Suite[Any, Any, Any]] = Registry(
    "suite",
    Suite,
    group="poolbench.suites",
    built_in=tuple(
        f"poolbench_driver.suites.{found.name}"
        for found in iter_modules([str(Path(__file__).parent)])
        if found.ispkg and found.name != _SHARED
    ),
)
