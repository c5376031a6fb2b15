"""Compare `scale.py` with a real cluster: the same plans, on three machines and simulated.

The machines are network namespaces: a head, and two workers with replicas whose handlers sleep; the broker is Redis on
a fourth one, where the drivers run too. Two runs with two models begin together. Needs root and the Debian packages
iproute2 and redis-server. `--quick` is a smoke test.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import write_report
from scaling.cluster import GPU_SERVICES, Times
from scaling.measure import Place, simulate
from scaling.plans import CARD_MODELS, card_plan, times_of
from scaling.real import VARIABLE

from poolbench.storage.folder import FolderStore

REPOSITORY = Path(__file__).resolve().parents[1]
REPLICAS = {"extractor": 2, "pooler": 2, "prober": 2, "scorer": 1, "steerer": 2}
#: The bar: the simulated time differs by at most so much.
TOLERANCE = 0.1


def real(given: dict[str, Any]) -> dict[str, Any]:
    """Return how long the runs took on the cluster, and what their drivers met."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.servers.nodes import LONG_S, serve

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(given, file)
        file.flush()
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "bench")])
        with serve(head_program="scaling.real", PYTHONPATH=paths, **{VARIABLE: file.name}) as nodes:
            commands = [[sys.executable, "-m", "scaling.real", "drive", str(n)] for n in range(len(given["models"]))]
            inside = ["ip", "netns", "exec", nodes.desk.name]
            drivers = [
                subprocess.Popen([*inside, *command], env=nodes.environment, stdout=subprocess.PIPE, text=True)
                for command in commands
            ]
            found = [json.loads(driver.communicate(timeout=LONG_S)[0].splitlines()[-1]) for driver in drivers]
    elapsed_s = max(each["ended_s"] for each in found) - min(each["began_s"] for each in found)
    counts = {name: sum(each[name] for each in found) for name in ("failures", "resent")}
    return {"elapsed_s": elapsed_s, "load_average": os.getloadavg(), **counts}


def simulated(given: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the same runs, simulated."""
    plans = [card_plan(model, **given["run"]) for model in given["models"]]
    layout = [(name,) for name, number in given["replicas"].items() for _ in range(number)]
    gpus = sum(given["replicas"][name] for name in GPU_SERVICES)
    with tempfile.TemporaryDirectory() as folder:
        place = Place(f"filesystem://{folder}/queue", FolderStore(Path(folder) / "store"))
        return simulate(plans, Times(given["tasks"], given["loading"]), layout, gpus, place, at_once=True)


def main() -> None:
    """Run, simulate, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=10.0, help="how much shorter tasks are than on one H100")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    args = parser.parse_args()
    logging.getLogger("poolbench.task").setLevel(logging.CRITICAL)  # tasks that the end of a simulation interrupts
    strategies = ["A1_mean"] if args.quick else ["A1_mean", "P1_last_token", "A2_max", "L5_keyword"]
    run = {"concepts": ["contrast"] if args.quick else ["contrast", "causation"], "strategies": strategies}
    models = list(CARD_MODELS)[: 1 if args.quick else 2]
    times = times_of([card_plan(model, **run) for model in models], "h100")
    given = {
        "models": models,
        "run": run,
        "replicas": REPLICAS,
        "tasks": {name: seconds / args.speed for name, seconds in times.tasks.items()},
        "loading": {name: seconds / args.speed for name, seconds in times.loading.items()},
    }
    figures = {"real": real(given), "simulated": simulated(given), "replicas": REPLICAS, "speed": args.speed}
    ratio = figures["simulated"]["elapsed_s"] / figures["real"]["elapsed_s"]
    ratios = {"scale_check.simulated_vs_real": ratio, "scale_check.vs_tolerance": abs(ratio - 1) / TOLERANCE}
    write_report("scale_check", ratios, figures)


if __name__ == "__main__":
    main()
