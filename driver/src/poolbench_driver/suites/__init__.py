"""The suites: what each adds to a run."""

from poolbench_driver.suites import planted
from poolbench_driver.suites.suite import Suite

SUITES: dict[str, Suite] = {
    "poolbench": Suite(),
    "planted": Suite(planted.SETTINGS, planted.register, planted.conclude, brings_all=True),
}
