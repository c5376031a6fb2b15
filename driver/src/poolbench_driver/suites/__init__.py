"""The suites: what each adds to a run. A suite is imported when a run uses it, which keeps other commands fast."""

from poolbench_driver.suites.suite import Suite


def suite_of(name: str) -> Suite:
    """Return what a suite adds to a run: nothing for an unknown name, which the configuration refuses."""
    if name == "planted":
        from poolbench_driver.suites.planted import SUITE

        return SUITE
    return Suite()
