"""`python -m tests.servers.gated STATE`: a Ray of its own with the gate and one service, until stdin is closed."""

import json
import sys
import traceback
from pathlib import Path
from urllib.parse import urlsplit

from deploy.local import head
from deploy.local.state import Cluster, new_cluster, save

from poolbench.errors import ConfigError, EndpointError

#: Few, so that a test can take them all.
NUM_RUNNING = 2


def main() -> None:
    """Starts everything, prints where it is, and ends it."""
    cluster = start(Path(sys.argv[1]))
    try:
        _deploy(cluster.http)
        found = {"http": cluster.http, "token": Path(cluster.token_file).read_text(), "metrics": cluster.metrics}
        found |= {"broker": cluster.broker, "logs": f"{cluster.ray_temp}/session_latest/logs"}
        print(json.dumps(found), flush=True)
        sys.stdin.read()
    except BaseException:
        traceback.print_exc()  # now: this process ends with its Ray
        raise
    finally:
        head.stop(cluster, print)


def start(state: Path, attempts: int = 3) -> Cluster:
    """A running head; Ray gives its node 30 s to come in, which a machine short of CPU may need twice."""
    cluster = new_cluster(state)
    try:
        head.start(cluster, state)
        save(state, cluster)
        head.connect(cluster, wait_s=head.START_TIMEOUT_S)
    except (ConfigError, EndpointError):
        head.stop(cluster, print)
        if attempts == 1:
            raise
        return start(state, attempts - 1)
    return cluster


def _deploy(http: str) -> None:
    from ray import serve

    from poolbench.runtime.serve import build_app

    address = urlsplit(http)
    serve.start(http_options={"host": address.hostname, "port": address.port, "location": "HeadOnly"})
    options = {"module": "tests.servers.exploding", "max_ongoing_requests": NUM_RUNNING}
    serve.run(build_app("prober", **options), name="prober", route_prefix="/prober")


if __name__ == "__main__":
    main()
