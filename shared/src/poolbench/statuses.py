"""The closed lists of states in records, tables and responses."""

from enum import StrEnum
from typing import NoReturn


class _Word(StrEnum):
    """A closed list; a word outside of it is refused with the list."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"unknown {cls.__name__} {value!r}; allowed: {', '.join(cls)}")


class Status(_Word):
    """The reason why a result row has a value or null. The list is closed and documented in docs/metrics.md."""

    OK = "ok"
    NOT_IMPLEMENTED = "not_implemented"
    COLLAPSED = "collapsed"
    NO_COVERAGE = "no_coverage"
    CLASS_DEPENDENT_COVERAGE = "class_dependent_coverage"
    TOO_FEW = "too_few"
    ONE_CLASS = "one_class"
    NOT_CONVERGED = "not_converged"
    NON_FINITE = "non_finite"
    NO_SCORER = "no_scorer"
    SCORER_INVALID = "scorer_invalid"
    NO_JUDGE = "no_judge"
    NO_EFFECT = "no_effect"
    NOT_FLUENT = "not_fluent"
    REVERSED = "reversed"
    RESTRICTED = "restricted"
    FAILED = "failed"


class TaskOutcome(_Word):
    """The outcome that a worker returns for one delivery of a task."""

    DONE = "done"
    SKIPPED = "skipped"  # everything was committed
    LEASED = "leased"  # another worker holds the task
    CANCELLED = "cancelled"  # the sender no longer wants it
    RETRIED = "retried"  # sent again, after a pause
    FAILED = "failed"  # recorded in the object store


class RunState(_Word):
    """The progress of a run, as `state.json` records it."""

    STARTING = "starting"
    RUNNING = "running"
    ASSEMBLING = "assembling"
    DONE = "done"
    FAILURES = "failures"  # finished, with failed tasks
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"  # by an error
    DIED = "died"  # the driver is gone; read, never written
    DAMAGED = "damaged"  # the file cannot be read; never written


class ServiceState(_Word):
    """State of a service, as `/health` and the status pages give it."""

    OK = "ok"
    UNAVAILABLE = "unavailable"  # it answers that it does not work
    SILENT = "silent"  # the gate has had no answer for too long
    ASLEEP = "asleep"  # it has no replica; the first task or request starts one
    BUSY = "busy"  # it took a request and has not answered yet
    REFUSED = "token refused"
    DOWN = "down"


class EngineState(_Word):
    """State of the steerer's engine."""

    IDLE = "idle"  # nothing was loaded yet
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the configured model could not be loaded
    DEAD = "dead"


class Code(StrEnum):
    """Codes of errors that no class of `poolbench.errors` has to itself, or that other processes decide by."""

    FAILED = "failed"
    INPUT = "input"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    HTTP = "http"  # any other error of the protocol
    BUSY = "busy"
    DEADLINE = "deadline"
    UNAVAILABLE = "unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    INFRASTRUCTURE = "infrastructure"
    INTERNAL = "internal"
