"""The suites: each folder of `suites/`, and those of other packages by the entry point `poolbench.suites`."""

from pathlib import Path
from pkgutil import iter_modules

from poolbench.registry import Registry
from poolbench_driver.contract.suite import SuiteInfo

SUITES: Registry[SuiteInfo] = Registry(
    "suite",
    SuiteInfo,
    group="poolbench.suites",
    built_in=tuple(
        f"poolbench_driver.suites.{module.name}"
        for module in iter_modules([str(Path(__file__).parents[1] / "suites")])
        if module.ispkg
    ),
)
