"""The suites: each folder of `suites/`, and those of other packages by the entry point `poolbench.suites`."""

from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from poolbench.registry import Registry
from poolbench_driver.contract.suite import Suite

SUITES: Registry[Suite[Any, Any, Any]] = Registry(
    "suite",
    Suite,  # type: ignore[type-abstract]  # the items are instances of its subclasses
    group="poolbench.suites",
    built_in=tuple(
        f"poolbench_driver.suites.{module.name}"
        for module in iter_modules([str(Path(__file__).parents[1] / "suites")])
        if module.ispkg
    ),
)
