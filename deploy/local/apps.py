"""Deploy the services, and wait for them visibly."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

from poolbench.contracts.wire import CONSOLE_PATH, HEALTH_PATH, SERVICES, bearer
from poolbench.errors import ConfigError, EndpointError
from poolbench.http.tls import client_context, server_files
from poolbench.settings import ScalingSettings, SteererSettings
from poolbench.telemetry.logs import serve_logging

DEPLOY_TIMEOUT_S = 300
STEERER_REQUESTS = 8192  # above POOLBENCH_STEERER_MAX_PENDING_TEXTS, whose error message says more than Serve's
ANSWER_TIMEOUT_S = 30
_POLL_S = 0.5
CONSOLE = CONSOLE_PATH.removeprefix("/")
#: Everything that Serve runs here.
APPLICATIONS = (*SERVICES, CONSOLE)
_MARKS = {"RUNNING": "[green]healthy[/green]", "DEPLOY_FAILED": "[red]failed[/red]"}


@dataclass
class AppState:
    """The state of one service."""

    name: str
    state: str = "waiting"
    replicas: int = 0
    message: str = ""


def deploy(http: str, missing: Sequence[str]) -> None:
    """Start Serve at the address `http`, and the missing applications, all at once.

    Raises:
        EndpointError: Serve cannot listen there, because another program took the port after it was chosen.
    """
    import ray
    from ray import serve
    from ray.exceptions import RayError

    from poolbench.runtime.serve import build_app, web_app

    try:
        serve.start(http_options=http_options(http), logging_config=serve_logging())
    except RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise EndpointError(
            f"the services cannot listen at {http} ({reason}): stop the program that uses this port, or run "
            "`make cluster-down` and `make cluster-up`, which chooses another"
        ) from error

    app_options = options(ray.cluster_resources().get("GPU", 0))
    applications = {name: build_app(name, **app_options.get(name, {})) for name in missing if name in SERVICES}
    if CONSOLE in missing:
        applications[CONSOLE] = web_app("poolbench_driver.console.serve:application", CONSOLE)
    targets = [serve.RunTarget(app, name=name, route_prefix=f"/{name}") for name, app in applications.items()]
    serve.run_many(targets, blocking=False, wait_for_applications_running=False)


def http_options(http: str) -> dict[str, Any]:
    """Return the options of Serve's proxy that answers at the address `http`, with TLS if it is configured."""
    address = urlsplit(http)
    return {"host": address.hostname, "port": address.port, "location": "HeadOnly", **server_files()}


def states() -> list[AppState]:
    """Return the state of every service and of the console in Serve."""
    from ray import serve
    from ray.serve.schema import ReplicaState

    applications = serve.status().applications
    app_states = []
    for name in APPLICATIONS:
        state = AppState(name, "absent")
        if name in applications:
            seen = applications[name]
            deployments = seen.deployments.values()
            running = sum(item.replica_states.get(ReplicaState.RUNNING, 0) for item in deployments)
            text = "; ".join(filter(None, [seen.message, *(item.message for item in deployments)]))
            state = AppState(name, str(seen.status.value), running, text)
        app_states.append(state)
    return app_states


def wait(console: Console) -> list[AppState]:
    """Wait until every service runs, showing each. Raise EndpointError if one fails or takes too long."""
    started = time.monotonic()
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            seen = states()
            live.update(_table(seen, time.monotonic() - started))
            if all(app.state == "RUNNING" for app in seen):
                return seen
            failed = [app for app in seen if app.state == "DEPLOY_FAILED"]
            late = time.monotonic() - started > DEPLOY_TIMEOUT_S
            if failed or late:
                apps = failed or [app for app in seen if app.state != "RUNNING"]
                reason = f"not ready after {DEPLOY_TIMEOUT_S} s" if late else "failed to start"
                lines = [f"  {app.name}: {(app.message or app.state).strip().splitlines()[-1]}" for app in apps]
                summary = f"{len(apps)} of {len(seen)} services {reason}; Serve's logs say more:"
                raise EndpointError("\n".join([summary, *lines]))
            time.sleep(_POLL_S)


def unhealthy(http: str, token: str, wait_s: float = 0) -> list[str]:
    """Return the services whose `/health` does not answer over HTTP within `wait_s`."""
    ends_at, left = time.monotonic() + wait_s, list(SERVICES)
    while left := [name for name in left if not _answers(f"{http}/{name}{HEALTH_PATH}", token)]:
        if time.monotonic() > ends_at:
            break
        time.sleep(_POLL_S)
    return left


def _answers(address: str, token: str) -> bool:
    try:
        return httpx.get(address, headers=bearer(token), timeout=10, verify=client_context()).is_success
    except httpx.HTTPError:
        return False


def _table(seen: list[AppState], elapsed_s: float) -> Table:
    table = Table(title=f"services, {elapsed_s:.0f} s", title_justify="left", box=None)
    for name in ("service", "state"):
        table.add_column(name)
    for app in seen:
        table.add_row(app.name, _MARKS.get(app.state, app.state.lower()))
    return table


def options(num_gpus: float) -> dict[str, dict[str, Any]]:
    """Return the options of `AppOptions` by service, given the GPUs of the whole cluster.

    Extractor and scorer have a GPU or a place on one; steerers grow in number with their queue over all others.
    POOLBENCH_REPLICAS_<SERVICE> overrides the numbers of replicas.

    Raises:
        ConfigError: POOLBENCH_STEERER_TENSOR_PARALLEL asks for more GPUs than there are, or a number of replicas is
            not allowed.
    """
    shares = _gpu_shares(num_gpus)
    app_options: dict[str, dict[str, Any]] = {name: {"num_gpus": share} for name, share in shares.items()}
    # An engine batches whatever is under way, so that many requests at once are its strength.
    steerer = app_options.setdefault("steerer", {}) | {"max_ongoing_requests": STEERER_REQUESTS}
    split = SteererSettings.load().tensor_parallel
    left = num_gpus - shares.get("extractor", 0) - shares.get("scorer", 0)
    if split > 1:
        if left < split:
            raise ConfigError(
                f"POOLBENCH_STEERER_TENSOR_PARALLEL is {split}, but of {num_gpus:g} GPUs that Ray sees {left:g} are "
                "left beside extractor and scorer"
            )
        steerer |= {"tensor_parallel": split, "num_gpus": split}
    most = int(left) // split
    if most > 1:
        steerer["max_replicas"] = most
    app_options |= {"steerer": steerer}
    settings = ScalingSettings.load()
    for name in SERVICES:
        if (replicas := settings.range_of(name)) is not None:
            numbers = {"num_replicas": replicas[0], "max_replicas": replicas[1], "idle_s": settings.replica_idle_s}
            app_options.setdefault(name, {}).update(numbers)
    return app_options


def _gpu_shares(num_gpus: float) -> dict[str, float]:
    """Return GPUs by service: a whole one for each of the three that use one, or places on those available.

    A share only tells Ray where a replica fits. Services on one GPU divide its memory by what is free and who has work
    (`poolbench.machine.gpu`).
    """
    if num_gpus >= 3:
        return dict.fromkeys(("extractor", "steerer", "scorer"), 1.0)
    if num_gpus == 2:
        return {"extractor": 0.5, "scorer": 0.5, "steerer": 1.0}
    return dict.fromkeys(("extractor", "steerer", "scorer"), 0.3) if num_gpus else {}
