"""A replica of a small service that consumes its queue, without Ray Serve: `python -m tests.servers.consumer`.

It lives as long as its consumer does, so the test that started it sees at once that the consumer has ended.
"""

import time
from pathlib import Path

import pyarrow as pa
from ray.serve.schema import TaskProcessorConfig
from tests.servers.quiet import TasksOnly

from poolbench.contracts.tasks import Task
from poolbench.errors import StoreError
from poolbench.queue.messages import TASK_NAME, queue_name
from poolbench.runtime.replica import Replica
from poolbench.worker.consumer import QueueConsumer
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO


class Echo(TasksOnly):
    """Writes a parameter of the task, or fails as a service does whose store is away."""

    name = "prober"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {
            "prober.echo": self.echo,
            "prober.away": self.away,
            "prober.hold": self.hold,
            "prober.fail": self.fail,
        }

    def echo(self, task: Task, io: TaskIO) -> None:
        """Commits `value`."""
        io.write_table("out", pa.table({"x": [task.params["value"]]}))

    def hold(self, task: Task, io: TaskIO) -> None:
        """Commits nothing until the file `until` is there."""
        self._await(task)
        self.echo(task, io)

    def _await(self, task: Task) -> None:
        while not Path(task.params["until"]).exists():
            time.sleep(0.05)

    def fail(self, task: Task, io: TaskIO) -> None:
        """Fails as `away` does, when the file `until` is there."""
        self._await(task)
        self.away(task, io)

    def away(self, task: Task, io: TaskIO) -> None:
        """Fails at every delivery."""
        raise StoreError("the store is away")


def create() -> Echo:
    """The service, for `load_service`."""
    return Echo()


def main() -> None:
    """Consumes until the consumer ends."""
    config = TaskProcessorConfig(
        queue_name=queue_name("prober"), adapter_config={"service": "prober", "tasks_at_once": 1, "finish_s": 10}
    )
    consumer = QueueConsumer(config)
    consumer.initialize()
    consumer.register_task_handle(Replica("prober", __name__).run_task, TASK_NAME)
    consumer.start_consumer()
    while consumer.consuming():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
