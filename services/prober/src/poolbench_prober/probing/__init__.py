"""Probing tasks beyond one binary concept: several classes, real values, spans and span pairs, with their controls."""

from poolbench_prober.probing.core import task_measures
from poolbench_prober.probing.outcomes import TaskProbes, predictions_table
from poolbench_prober.probing.pilots import pilot_answers
from poolbench_prober.probing.targets import Targets
