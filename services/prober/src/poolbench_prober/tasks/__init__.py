"""Probing tasks beyond one binary concept: several classes, real values, spans and span pairs, with their controls."""

from poolbench_prober.tasks.core import task_measures
from poolbench_prober.tasks.targets import Targets

__all__ = ["Targets", "task_measures"]
