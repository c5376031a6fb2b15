"""Checks of machine, cluster and services: what commonly breaks, and what a run requires before it starts."""

from poolbench_driver.doctor.checks import examine
from poolbench_driver.doctor.finding import Level
