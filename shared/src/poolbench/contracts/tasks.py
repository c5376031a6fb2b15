"""The task model: what the driver enqueues and a service executes."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from poolbench.contracts.bounds import ArtifactKey, Flag, Label, Name, Role, Whole
from poolbench.contracts.keys import digest, is_restricted
from poolbench.errors import InputError

TASK_SCHEMA_VERSION = 1
#: Inputs, or outputs, of one task.
MAX_ROLES = 10_000

#: Ids name files of the object store (failures, progress), hence no separators.
TaskId = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=128)]
TaskKind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*[.][a-z][a-z0-9_]*$", max_length=64)]


class Task(BaseModel):
    """One unit of work for one service: small JSON. Payloads lie in the object store; each output is its own commit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Whole = Field(default=TASK_SCHEMA_VERSION, ge=0, le=1_000)
    task_id: TaskId = ""  # hash of kind and outputs, so that the same work has the same id in every run and driver
    kind: TaskKind  # `<service>.<verb>`
    run_id: Label = ""  # for logs only; never part of a key
    inputs: dict[Role, ArtifactKey] = Field(default_factory=dict, max_length=MAX_ROLES)  # artifact key by role
    outputs: dict[Role, ArtifactKey] = Field(min_length=1, max_length=MAX_ROLES)  # artifact key by role
    params: dict[Name, Any] = Field(default_factory=dict, max_length=100)  # JSON parameters of the verb
    restricted: Flag = False

    @model_validator(mode="after")
    def _fill_identity(self) -> Self:
        if not self.task_id:
            object.__setattr__(self, "task_id", digest({"kind": self.kind, "outputs": self.outputs}, 24))
        keys = [*self.inputs.values(), *self.outputs.values()]
        object.__setattr__(self, "restricted", self.restricted or any(map(is_restricted, keys)))
        return self

    @property
    def service(self) -> str:
        """Return the service that executes this task."""
        return self.kind.partition(".")[0]


class MalformedTaskError(InputError):
    """A message is not a task, or is a task of an unsupported version."""


def parse_task(message: Mapping[str, Any]) -> Task:
    """Parse a task from JSON. Raise MalformedTaskError if the message is not a task of this schema version."""
    version, task_id = message.get("schema_version"), message.get("task_id", "?")
    if version != TASK_SCHEMA_VERSION:
        raise MalformedTaskError(
            f"task {task_id} has schema version {version}, this service reads "
            f"{TASK_SCHEMA_VERSION}: update the older of driver and services"
        )
    try:
        return Task.model_validate(message, strict=True)
    except ValidationError as error:
        raise MalformedTaskError(f"task {task_id} is malformed: {error}") from error
