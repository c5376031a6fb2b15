"""Why a task has no outputs."""

from dataclasses import dataclass

from poolbench.errors import CellError
from poolbench.statuses import Status


@dataclass(frozen=True)
class Failure:
    """Why a task has no outputs."""

    task_id: str
    kind: str
    status: Status
    reason: str
    blocked: bool = False  # never sent, because an input is missing
    damaged: str = ""  # key of the damaged artifact that its worker met
    code: str = ""  # of the error, such as `not_found`

    @property
    def error(self) -> CellError:
        """Return the error for the cells that depend on the task."""
        return CellError(self.status, self.reason)
