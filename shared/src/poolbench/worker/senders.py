"""Who sent a task: its code and its object store, as far as the message says so."""

from dataclasses import dataclass

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, InputError
from poolbench.steps import STEPS


@dataclass(frozen=True)
class Sender:
    """What the sender of a task says about itself. Other clients may say nothing."""

    step_version: int | None = None  # of the step of the task
    store_id: str | None = None


class OtherVersionError(InputError):
    """The sender of a task and this service have different code for its step, so the keys of its outputs differ."""


class OtherStoreError(ConfigError):
    """A task names artifacts of another object store. It belongs to another cluster, which uses the same broker."""


def require_kin(task: Task, sender: Sender, store_id: str) -> None:
    """Raise OtherStoreError or OtherVersionError if a task is not for this worker, whose store has the id `store_id`.

    An id is compared only where both are known.
    """
    if sender.store_id and store_id and sender.store_id != store_id:
        raise OtherStoreError(
            f"{task.task_id} was sent by a cluster with another object store, which uses the same broker; give each "
            "cluster a Redis database or folder of its own"
        )
    step = STEPS.get(task.kind)
    if step is not None and sender.step_version not in (None, step.version):
        raise OtherVersionError(
            f"{task.kind} has version {sender.step_version} in the driver and {step.version} in this service: install "
            "the same version of PoolBench everywhere, and restart the cluster"
        )
