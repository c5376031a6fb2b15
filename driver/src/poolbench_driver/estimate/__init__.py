"""Estimate what a run costs before it starts: time, GPU hours, bytes and money."""

from poolbench_driver.estimate.estimate import ClusterSize, Estimate, as_json, estimate, joined
from poolbench_driver.estimate.rates import read_rates
