"""`python -m tests.trials.demo_nodes`: the demo on a head, two workers and a desk; `make demo-nodes` calls it.

Head, workers and run are started by the commands of the tutorial (`tests.servers.tutorial`).

The machines are network namespaces on this computer, with an address each. Results go to `runs-nodes/`. Exit code 0:
the demo's checks hold, the same command again finds nothing to do, and every figure is that of the demo in
`runs/latest`, if `make demo` has made one; 1: something does not hold; 2: such machines cannot be made here.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.check_demo import findings, rows_with_details
from tests.figures import differences, rows_of
from tests.servers import machines, nodes, redis, tutorial
from tests.servers.nodes import REPOSITORY, Nodes

_LOCAL, _OUTPUT = REPOSITORY / "runs", REPOSITORY / "runs-nodes"
_COMMAND = [*tutorial.command("poolbench-driver run", {}), "--display", "plain", "--output", str(_OUTPUT)]
_LONG_S = 3600.0  # a guard against hanging
_MAX_LINES = 20


def main() -> int:
    """Run the demo twice; print what does not hold."""
    if why := machines.missing() or ("" if redis.available() else "needs the Debian package redis-server"):
        print(f"the demo on several machines cannot run here: {why}", file=sys.stderr)
        return 2
    print("starting a head, two workers, and a desk with Redis and the driver", flush=True)
    with nodes.serve() as cluster:
        placed = {name: sorted(set(cluster.replicas(name).values())) for name in ("head", "first", "second")}
        print("\n".join(f"  {name} ({cluster.machines[name].address}): {placed[name]}" for name in placed), flush=True)
        found = [*_ran(cluster)]
    if not found:
        found = [*findings(rows_with_details(_OUTPUT), _OUTPUT), *_compared()]
    print("\n".join(found[:_MAX_LINES]) if found else f"the demo on several machines holds; results: {_OUTPUT}/latest")
    return 1 if found else 0


def _ran(cluster: Nodes) -> Iterator[str]:
    """Run the demo from the desk, and the same command again, which must find nothing to do."""
    done = cluster.desk.call(_COMMAND, timeout=_LONG_S, capture_output=False)
    if done.returncode:
        yield f"the driver ended with {done.returncode}"
        return
    digest = _digest(_OUTPUT)
    again = cluster.desk.call([*_COMMAND[:-4], "--display", "json", *_COMMAND[-2:]], timeout=_LONG_S)
    events = [json.loads(line) for line in again.stderr.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["event"] == "done" and not event["reused"]]
    if again.returncode or sent or _digest(_OUTPUT) != digest:
        yield f"the same command again ended with {again.returncode}, did {len(sent)} tasks: {again.stderr[-500:]}"


def _compared() -> Iterator[str]:
    """Compare the figures with those of `make demo`. The digest is of rounded figures, so it may differ."""
    here, local = (runs / "latest" for runs in (_OUTPUT, _LOCAL))
    if not (local / "results.parquet").is_file() or local.resolve().name != here.resolve().name:
        print(f"not compared with the local demo: {local} holds no result of it; run `make demo`")
        return
    same = _digest(_OUTPUT) == _digest(_LOCAL)
    print(f"results digest {_digest(_OUTPUT)[:16]}, {'as' if same else 'not as'} `make demo` ({_digest(_LOCAL)[:16]})")
    yield from differences(rows_of(here), rows_of(local))


def _digest(runs: Path) -> str:
    return str(json.loads((runs / "latest" / "state.json").read_text())["results_digest"])


if __name__ == "__main__":
    sys.exit(main())
