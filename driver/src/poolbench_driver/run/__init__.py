"""The loop that sends the tasks of a plan, their outcomes in the store, and its display."""

from poolbench_driver.run.loop import RunLoop, TooManyFailuresError
from poolbench_driver.run.outcomes import Failure, committed_keys, failure_of, read_failure, remaining
from poolbench_driver.run.pace import Pace
from poolbench_driver.run.repairs import FoundDamageError, OutdatedPlanError

__all__ = [
    "Failure",
    "FoundDamageError",
    "OutdatedPlanError",
    "Pace",
    "RunLoop",
    "TooManyFailuresError",
    "committed_keys",
    "failure_of",
    "read_failure",
    "remaining",
]
