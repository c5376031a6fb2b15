"""The parts of `scale_check.py` that run on a real cluster: services whose tasks sleep, and drivers.

`python -m scaling.real NUMBER` is the driver of one run. It prints `ready`, begins when it reads a line, and prints its
figures as JSON. The variable SCALING names the file with the runs and with the seconds of each task.
"""

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
READY = "ready"
#: Services that load a language model, and therefore choose among the tasks that wait.
_CHOOSING = ("extractor", "steerer")


class SleepingReplica:
    """Lets real time pass."""

    def __init__(self, tasks: Mapping[str, float], loading: Mapping[str, float]) -> None:
        self._tasks, self._loading = tasks, loading
        self.loaded = ""

    def spend(self, task: Task, share: float) -> None:
        """Sleep for a share of the time of a task, and before it for the time of loading another model."""
        model = str(task.params.get("model", ""))
        if model and self.loaded != model:
            self.loaded = model
            time.sleep(self._loading.get(task.service, 0.0))
        time.sleep(share * self._tasks[task.task_id])


def setting() -> dict[str, Any]:
    """Return the content of the file: `tasks` and `loading` in seconds, `models`, and the settings of their `run`."""
    return dict(json.loads(Path(os.environ[VARIABLE]).read_text()))


def create() -> Sleeper:
    """Return the service of the deployment to which this replica belongs."""
    from ray import serve

    setup = setting()
    replica = SleepingReplica(setup["tasks"], setup["loading"])
    service = Sleeper(serve.get_replica_context().deployment, replica)
    if service.name in _CHOOSING:
        service.loaded_model = lambda: replica.loaded  # type: ignore[attr-defined]
    return service


def drive(number: int) -> dict[str, Any]:
    """Do one of the runs as soon as a line can be read; return its figures."""
    from poolbench.queue import Broker, TaskQueue, open_leases
    from poolbench.settings import ClusterSettings
    from poolbench.storage import Artifacts, open_store
    from poolbench_driver.loop import RunLoop
    from scaling.measure import Quiet
    from scaling.plans import card_plan

    setup, settings = setting(), ClusterSettings.load()
    plan, broker = card_plan(setup["models"][number], **setup["run"]), Broker(settings.broker_url)
    artifacts, queue, leases = Artifacts(open_store(settings.store_uri)), TaskQueue(broker), open_leases(broker)
    loop = RunLoop(plan, artifacts, queue, leases, Quiet(), run_id=f"run{number}")
    print(READY, flush=True)
    sys.stdin.readline()
    began_s = time.time()
    failures = loop.run()
    num_artifacts = sum(artifacts.exists(key) for task in plan.tasks.values() for key in task.outputs.values())
    counts = {"failures": len(failures), "resent": loop.resent, "artifacts": num_artifacts}
    return {"began_s": began_s, "ended_s": time.time(), **counts}


if __name__ == "__main__":
    print(json.dumps(drive(int(sys.argv[1]))))
