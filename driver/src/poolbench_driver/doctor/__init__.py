"""Checks of machine, cluster and services for what commonly breaks."""

from poolbench_driver.doctor.checks import examine
from poolbench_driver.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
