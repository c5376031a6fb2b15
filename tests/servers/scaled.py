"""`python -m tests.servers.scaled STATE`: a Ray with a service that scales to zero, until stdin is closed."""

import time
from typing import Any

import pyarrow as pa
from deploy.local.state import Cluster
from tests.servers.gated import keep_up

from poolbench.contracts.tasks import Task
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO

#: Far below what Serve takes to notice that a task is in work, so that a replica is ended in the middle of a long one.
IDLE_S = 3.0


class Napper:
    """Sleeps as long as it is asked to."""

    name = "scorer"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {"scorer.nap": self.nap}

    def nap(self, task: Task, io: TaskIO) -> None:
        """Sleeps, then commits."""
        time.sleep(task.params["seconds"])
        io.write_table("out", pa.table({"x": [1]}))

    def routes(self, router: Any) -> None:
        """`POST /echo`."""

        @router.post("/echo")
        def echo(body: dict[str, Any]) -> dict[str, Any]:
            return body

    def health(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}


def create() -> Napper:
    """The service, for `load_service`."""
    return Napper()


def places(cluster: Cluster) -> dict[str, str]:
    """Return where its test finds the messages and what tasks commit."""
    return {"store": cluster.store, "broker": cluster.broker}


def main() -> None:
    """Start everything, and end it with stdin."""
    scaling = {"num_replicas": 0, "max_replicas": 1, "idle_s": IDLE_S, "finish_s": 120}
    keep_up("scorer", places, module="tests.servers.scaled", **scaling)


if __name__ == "__main__":
    main()
