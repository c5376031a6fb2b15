"""The suites: what each adds to a run. One is imported when it is asked for, since commands check names without it."""

from poolbench_driver.suites.suite import Suite


def suite_of(name: str | None) -> Suite:
    """Return what a suite adds; one that adds nothing for a name that is none, which the configuration refuses."""
    if name == "planted":
        from poolbench_driver.suites.planted import SUITE

        return SUITE
    return Suite()
