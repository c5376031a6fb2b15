"""Compare `scale.py` with a real cluster: the same plans simulated, and on Ray with replicas whose tasks sleep.

Ray, its replicas, Redis, leases, the folder store and the drivers are real. A task sleeps as long as the
simulation assumes, divided by `--speed`. Two runs with two models begin together. Needs the Debian package
redis-server.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import REPOSITORY, Parser, write_report
from scaling.cluster import GPU_SERVICES, Times
from scaling.measure import Place, simulate
from scaling.plans import CARD_MODELS, card_plan, times_of
from scaling.real import READY, VARIABLE

from poolbench.contracts.wire import SERVICES
from poolbench.settings import PlaceSettings
from poolbench.storage.folder import FolderStore

#: The bar: the simulated time differs by at most so much.
TOLERANCE = 0.1
#: A real run that takes longer than this many times the simulated one, and a minute, is given up.
PATIENCE = 3.0


def given_runs(args: argparse.Namespace) -> dict[str, Any]:
    """Return the runs, and the seconds of their tasks and of loading a model."""
    strategies = ["A1_mean"] if args.smallest else ["A1_mean", "P1_last_token", "A2_max", "L5_keyword"]
    run = {"concepts": ["contrast"] if args.smallest else ["contrast", "causation"], "strategies": strategies}
    models = list(CARD_MODELS)[: 1 if args.smallest else 2]
    times = times_of([card_plan(model, **run) for model in models], pooler_processes=4)
    return {
        "models": models,
        "run": run,
        "replicas": dict.fromkeys(SERVICES, 1 if args.smallest else 2),
        "tasks": {name: seconds / args.speed for name, seconds in times.tasks.items()},
        "loading": {name: seconds / args.speed for name, seconds in times.loading.items()},
    }


def simulated(setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the runs, simulated."""
    plans = [card_plan(model, **setup["run"]) for model in setup["models"]]
    layout = [(name,) for name, number in setup["replicas"].items() for _ in range(number)]
    gpus = sum(setup["replicas"][name] for name in GPU_SERVICES)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(f"filesystem://{folder}/queue", FolderStore(Path(folder) / "store"))
        return simulate(plans, Times(setup["tasks"], setup["loading"]), layout, gpus, place, at_once=True)


def real(setup: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Return how long the runs took on a cluster, from the first beginning to the last end; null with a reason."""
    with tempfile.TemporaryDirectory() as scratch, cluster(Path(scratch), setup):
        try:
            runs = _drive(len(setup["models"]), limit_s)
        except subprocess.TimeoutExpired:
            return {"elapsed_s": None, "reason": f"the drivers had not ended after {limit_s:.0f} s"}
    counts = {name: sum(run[name] for run in runs) for name in ("failures", "resent", "artifacts")}
    elapsed_s = max(run["ended_s"] for run in runs) - min(run["began_s"] for run in runs)
    return {"elapsed_s": elapsed_s, **counts}


@contextmanager
def cluster(folder: Path, setup: Mapping[str, Any]) -> Iterator[None]:
    """Run Redis and a Ray with the sleeping services; this process and its children find them by the environment."""
    from deploy.local import head
    from tests.servers import gated
    from tests.servers.redis import serve as serve_redis

    state, runs = folder / "state", folder / "runs.json"
    state.mkdir(mode=0o700)
    runs.write_text(json.dumps(setup))
    with serve_redis(folder) as broker:
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "bench"), os.environ.get("PYTHONPATH", "")])
        names = {PlaceSettings.variable("state"): str(state), PlaceSettings.variable("broker"): broker}
        os.environ.update(names, **{VARIABLE: str(runs), "PYTHONPATH": paths.rstrip(os.pathsep)})
        running = gated.start(state)
        try:
            _deploy(running.http, setup["replicas"])
            yield
        finally:
            head.stop(running, print)


def _deploy(http: str, replicas: Mapping[str, int]) -> None:
    """Start the services, and wait until all replicas run."""
    from ray import serve

    from poolbench.runtime.serve import build_app

    address = urlsplit(http)
    serve.start(http_options={"host": address.hostname, "port": address.port, "location": "HeadOnly"})
    for name, number in replicas.items():
        app = build_app(name, module="scaling.real", num_replicas=number)
        serve.run(app, name=name, route_prefix=f"/{name}")


def _drive(number: int, limit_s: float) -> list[dict[str, Any]]:
    """Let the drivers begin together; return what each of them prints. Raise TimeoutExpired, and end them."""
    with ExitStack() as ending:
        drivers = [ending.enter_context(_driver(which)) for which in range(number)]
        _begin(drivers)
        return [json.loads(driver.communicate(timeout=limit_s)[0].splitlines()[-1]) for driver in drivers]


@contextmanager
def _driver(number: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "scaling.real", str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _begin(drivers: Sequence[subprocess.Popen[str]]) -> None:
    for driver in drivers:
        assert driver.stdout is not None
        lines: Iterator[str] = map(str.strip, iter(driver.stdout.readline, ""))
        if READY not in lines:
            raise SystemExit("a driver ended before its run began")
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("\n")
        driver.stdin.flush()


def main() -> None:
    """Simulate, run, and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--speed", type=float, default=4.0, help="how much shorter tasks are than on one H100")
    args = parser.options(speed=100)
    logging.getLogger("poolbench.task").setLevel(logging.CRITICAL)  # tasks that the end of a simulation interrupts
    setup = given_runs(args)
    predicted = simulated(setup)
    measured = real(setup, PATIENCE * predicted["elapsed_s"] + 60)
    ratios: dict[str, float | None] = dict.fromkeys(("scale_check.simulated_vs_real", "scale_check.vs_tolerance"))
    if measured["elapsed_s"] is not None:
        ratio = predicted["elapsed_s"] / measured["elapsed_s"]
        ratios = {"scale_check.simulated_vs_real": ratio, "scale_check.vs_tolerance": abs(ratio - 1) / TOLERANCE}
    inputs = {name: setup[name] for name in ("models", "run", "replicas")}
    write_report("scale_check", args, ratios, {"real": measured, "simulated": predicted, **inputs})


if __name__ == "__main__":
    main()
