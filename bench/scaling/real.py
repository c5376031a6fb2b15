"""The services of `scale_check.py`: real replicas on a real cluster, whose handlers sleep instead of computing.

As a program it is the head of that cluster, or with `drive NUMBER` the driver of one of its runs. The variable SCALING
names a file with what each task takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolbench.contracts.tasks import Task
from scaling.cluster import Sleeper

VARIABLE = "SCALING"


class SleepingReplica:
    """Lets real time pass."""

    def __init__(self, tasks: Mapping[str, float], loading: Mapping[str, float]) -> None:
        self._tasks, self._loading = tasks, loading
        self.loaded = ""

    def spend(self, task: Task, share: float) -> None:
        """Sleep for a share of the time of a task, and before it for that of loading another model."""
        model = str(task.params.get("model", ""))
        if model and self.loaded != model:
            self.loaded = model
            time.sleep(self._loading.get(task.service, 0.0))
        time.sleep(share * self._tasks[task.task_id])


def setting() -> dict[str, Any]:
    """Return what the file says: seconds of `tasks` and `loading`, `replicas` by service, `models` and their `run`."""
    return dict(json.loads(Path(os.environ[VARIABLE]).read_text()))


def create() -> Sleeper:
    """Return the service of the Serve deployment that this process is a replica of."""
    from ray import serve

    given = setting()
    name = serve.get_replica_context().deployment
    return Sleeper(name, SleepingReplica(given["tasks"], given["loading"]))


def drive(number: int) -> None:
    """Do one of the runs; print the times of day of its beginning and its end."""
    from poolbench.queue import Broker, TaskQueue, open_leases
    from poolbench.runtime.settings import ClusterSettings
    from poolbench.storage import Artifacts, open_store
    from poolbench_driver.estimate.schedule import chains
    from poolbench_driver.run import RunLoop
    from scaling.measure import Quiet
    from scaling.plans import card_plan

    given, settings = setting(), ClusterSettings.load()
    plan, broker = card_plan(given["models"][number], **given["run"]), Broker(settings.broker_url)
    loop = RunLoop(
        plan,
        Artifacts(open_store(settings.store_uri)),
        TaskQueue(broker),
        open_leases(broker),
        Quiet(),
        run_id=f"run{number}",
        chains=chains(plan.tasks.values(), given["tasks"]),
    )
    began_s = time.time()
    failures = loop.run()
    print(json.dumps({"began_s": began_s, "ended_s": time.time(), "failures": len(failures), "resent": loop.resent}))


def main() -> int:
    """Run the head of a cluster with these services, or one driver."""
    if sys.argv[1:2] == ["drive"]:
        drive(int(sys.argv[2]))
        return 0
    from deploy.local import apps
    from deploy.nodes import head

    replicas = setting()["replicas"]
    apps.options = lambda _gpus: {  # type: ignore[assignment]
        name: {"module": "scaling.real", "num_replicas": number} for name, number in replicas.items()
    }
    return head.main()


if __name__ == "__main__":
    sys.exit(main())
