"""`python -m tests.servers.scaled STATE`: a Ray with a service that scales to zero, until stdin is closed."""

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from deploy.local import head
from tests.servers.gated import start

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


def main() -> None:
    """Starts everything, prints where it is, and ends it."""
    cluster = start(Path(sys.argv[1]))
    try:
        _deploy(cluster.http)
        places = {"http": cluster.http, "token": Path(cluster.token_file).read_text()}
        print(json.dumps(places | {"store": cluster.store, "broker": cluster.broker}), flush=True)
        sys.stdin.read()
    except BaseException:
        traceback.print_exc()  # now: this process ends with its Ray
        raise
    finally:
        head.stop(cluster, print)


def _deploy(http: str) -> None:
    from ray import serve

    from poolbench.runtime.serve import build_app

    address = urlsplit(http)
    serve.start(http_options={"host": address.hostname, "port": address.port, "location": "HeadOnly"})
    scaling = {"num_replicas": 0, "max_replicas": 1, "idle_s": IDLE_S, "finish_s": 120}
    serve.run(build_app("scorer", module="tests.servers.scaled", **scaling), name="scorer", route_prefix="/scorer")


if __name__ == "__main__":
    main()
