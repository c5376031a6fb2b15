"""The loop that sends the tasks of a plan, their outcomes in the store, and its display."""

from poolbench_driver.loop.loop import RunLoop, TooManyFailuresError
from poolbench_driver.loop.outcomes import remaining
from poolbench_driver.loop.pace import Pace
from poolbench_driver.loop.repairs import FoundDamageError, OutdatedPlanError
