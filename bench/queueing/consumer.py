"""The queue consumer of a replica without Ray Serve: `python -m queueing.consumer`, ended by its parent.

Its service writes down when the handler of a task began. It reads CLOCK_MONOTONIC, which all processes of a machine
share.
"""

import threading
import time
from typing import Any

import pyarrow as pa
from ray.serve.schema import TaskProcessorConfig

from poolbench.contracts.tasks import Task
from poolbench.queue.messages import TASK_NAME, queue_name
from poolbench.runtime.replica import Replica
from poolbench.worker.consumer import QueueConsumer
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO

SERVICE, KIND, OUTPUT = "prober", "prober.start", "start"


class Starts:
    """A service whose tasks do nothing but say when they began."""

    name = SERVICE

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {KIND: self.start}

    def start(self, task: Task, io: TaskIO) -> None:
        """Commit the time at which this handler was called."""
        io.write_table(OUTPUT, pa.table({"began_s": [time.monotonic()]}))

    def routes(self, router: Any) -> None:
        """Add no verbs."""

    def health(self) -> dict[str, Any]:
        """Return no details."""
        return {}


def create() -> Starts:
    """Return the service, for `load_service`."""
    return Starts()


def main() -> None:
    """Consume until the process is ended."""
    config = TaskProcessorConfig(
        queue_name=queue_name(SERVICE), adapter_config={"service": SERVICE, "tasks_at_once": 1}
    )
    consumer = QueueConsumer(config)
    consumer.initialize()
    consumer.register_task_handle(Replica(SERVICE, __name__).run_task, TASK_NAME)
    consumer.start_consumer()
    threading.Event().wait()


if __name__ == "__main__":
    main()
