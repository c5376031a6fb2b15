"""`python -m deploy.local.cluster up|down|status`: the whole of PoolBench on this machine."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deploy.local import apps, head
from deploy.local.head import require_loopback
from deploy.local.state import Cluster, exclusive, forget, load, new_cluster, save, state_folder
from poolbench.contracts.wire import CONSOLE_PATH, SERVICES, Exit
from poolbench.errors import ConfigError, EndpointError, PoolbenchError
from poolbench.machine.preflight import find_gaps, installed_profile, print_gaps
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.broker import Owner, require_owner
from poolbench.queue.letters import NEWEST_SHOWN
from poolbench.storage import open_store, require_conditional_writes, store_id

_CONSOLE = Console()
_START_ATTEMPTS = 3
_ALREADY_UP_S = 3  # a service that is busy answers late


def up(state: Path) -> None:
    """Start everything; do nothing if it runs, and complete what was interrupted."""
    started = time.monotonic()
    cluster = _living(state)
    if cluster is None:
        cluster = _start(state)
    elif not apps.unhealthy(cluster.http, _token(cluster), _ALREADY_UP_S):
        require_loopback(cluster)
        _CONSOLE.print("already up")
        return _print_addresses(cluster)
    else:
        head.connect(cluster)
    if missing := [app.name for app in apps.states() if app.state not in ("RUNNING", "DEPLOYING")]:
        _CONSOLE.print(f"deploying {', '.join(missing)}")
        apps.deploy(cluster.http, missing)
    apps.wait(_CONSOLE)
    if still := apps.unhealthy(cluster.http, _token(cluster), apps.ANSWER_TIMEOUT_S):
        raise PoolbenchError(f"no answer over HTTP from {', '.join(still)}; logs: {cluster.logs}")
    try:
        require_loopback(cluster)
    except ConfigError:  # other machines can reach it
        head.stop(cluster, _CONSOLE.print)
        forget(state)
        raise
    _CONSOLE.print(f"[green]up[/green] in {time.monotonic() - started:.0f} s")
    _print_addresses(cluster)


def down(state: Path) -> None:
    """Stop what `up` started, and nothing else; data and queue stay."""
    cluster = load(state)
    if cluster is None:
        return _CONSOLE.print("nothing to stop")
    count = head.stop(cluster, _CONSOLE.print)
    forget(state)
    _CONSOLE.print(f"down: {count} processes ended; data stays in {state}")


def status(state: Path) -> None:
    """Print applications, replicas, queue depths and dead letters."""
    cluster = _living(state)
    if cluster is None:
        return _CONSOLE.print("down: start it with `make cluster-up`")
    head.connect(cluster)
    queue = TaskQueue(Broker(cluster.broker))
    table = Table(box=None)
    for name in ("service", "state", "replicas", "waiting", "not understood", "dead letters"):
        table.add_column(name)
    for app in apps.states():
        counts: tuple[int, ...] = ()  # the console has no queue
        if app.name in SERVICES:
            counts = queue.depth(app.name), len(queue.misunderstood(app.name)), queue.num_dead_letters(app.name)
        table.add_row(app.name, app.state, str(app.replicas), *map(str, counts))
    _CONSOLE.print(table)
    for name in SERVICES:
        for letter in queue.dead_letters(name, NEWEST_SHOWN):
            _CONSOLE.print(f"dead letter of {name}: {letter.line}", markup=False)
    _print_addresses(cluster)


def _living(state: Path) -> Cluster | None:
    """Return the running cluster, and clear away the remains of a crashed one."""
    cluster = load(state)
    if cluster is None or cluster.runs():
        return cluster
    _CONSOLE.print("clearing away a cluster that ended without `cluster-down`")
    head.stop(cluster, _CONSOLE.print)
    forget(state)
    return None


def _start(state: Path) -> Cluster:
    _check_machine()
    cluster = new_cluster(state)
    store = open_store(cluster.store)
    require_conditional_writes(store)
    broker = Broker(cluster.broker)
    TaskQueue(broker).ping()
    require_owner(broker, Owner(store_id=store_id(store), store_uri=cluster.store))
    for attempt in range(1, _START_ATTEMPTS + 1):
        _CONSOLE.print(f"starting Ray (token authentication on){f', attempt {attempt}' if attempt > 1 else ''}")
        try:
            return _start_head(state)
        except (ConfigError, EndpointError) as error:
            # Ray gives its node 30 s to come in, which a machine short of CPU may need twice.
            if attempt == _START_ATTEMPTS:
                raise
            _CONSOLE.print(str(error), markup=False)
    raise AssertionError("the last attempt returns or raises")


def _start_head(state: Path) -> Cluster:
    cluster = new_cluster(state)
    try:
        head.start(cluster, state)
        save(state, cluster)
        head.connect(cluster, wait_s=head.START_TIMEOUT_S)
    except BaseException:
        head.stop(cluster, _CONSOLE.print)
        forget(state)
        raise
    return cluster


def _check_machine() -> None:
    """Print what this machine lacks. Raise ConfigError if services would fail minutes later."""
    profile = installed_profile()
    if profile and print_gaps(find_gaps(profile, None)):
        raise ConfigError("the cluster was not started")


def _token(cluster: Cluster) -> str:
    return Path(cluster.token_file).read_text().strip()


def _print_addresses(cluster: Cluster) -> None:
    lines = {
        "services": "  ".join(f"{cluster.http}/{name}" for name in SERVICES),
        "console": f"{cluster.http}{CONSOLE_PATH}/",
        "docs": f"{cluster.http}/extractor/docs (and so for each)",
        "store": cluster.store,
        "queue": Broker(cluster.broker).shown,
        **({"metrics": cluster.metrics} if cluster.metrics_port else {}),
        "token": f"in {cluster.token_file}",
        "logs": f"{cluster.logs}, {cluster.ray_temp}/session_latest/logs/serve",
    }
    for name, value in lines.items():
        _CONSOLE.print(f"{name:9} {value}", soft_wrap=True, highlight=False, markup=False)


def main() -> int:
    """Run one command; an error that a user can correct is one line, without a traceback."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.cluster", description=__doc__)
    commands = {"up": up, "down": down, "status": status}
    parser.add_argument("command", choices=commands)
    command = parser.parse_args().command
    try:
        state = state_folder()
        if command == "status":
            status(state)
        else:
            with exclusive(state):
                commands[command](state)
    except PoolbenchError as error:
        _CONSOLE.print(f"[red]error[/red] {error}", soft_wrap=True)
        return Exit.USAGE
    except KeyboardInterrupt:
        _CONSOLE.print("interrupted; `make cluster-up` goes on, `make cluster-down` ends it")
        return Exit.INTERRUPTED
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
