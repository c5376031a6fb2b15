"""The console of a cluster, as an application of Ray Serve at `/console`."""

# Without postponed annotations: Serve reads those of `app`.
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(options: dict[str, Any] | None = None) -> "Application":
    """Build the application, `poolbench_driver.console.serve:app` in Serve's configuration."""
    from ray import serve

    from poolbench.telemetry.logs import serve_logging

    settings: dict[str, Any] = {"name": "console", "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 64}
    configure = serve.deployment(**settings, logging_config=serve_logging(), **(options or {}))
    return configure(serve.ingress(_console)()).bind()


def _console() -> Any:
    """Return the ASGI application of a replica, which keeps copies of the runs that it shows."""
    from poolbench.http.border import Border, BorderLimits
    from poolbench.http.tokens import Tokens
    from poolbench.runtime.replica import keep_on_loopback
    from poolbench.settings import ClusterSettings, ConsoleSettings
    from poolbench.storage import store_id
    from poolbench.telemetry.logs import configure_logging
    from poolbench_driver.cluster.services import Services
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.console.app import Console
    from poolbench_driver.console.source import RunSource
    from poolbench_driver.records import RunRecords

    configure_logging("console")
    keep_on_loopback()
    settings = ClusterSettings.load()
    store = open_artifacts(settings).store
    copies = Path(tempfile.gettempdir(), f"poolbench-console-{os.getuid()}-{store_id(store)[:8]}")
    copies.mkdir(mode=0o700, exist_ok=True)
    source = RunSource(copies, RunRecords(store))
    hosts = [host.strip() for host in ConsoleSettings.load().hosts.split(",") if host.strip()]
    return Border(Console(source, Services(settings), Tokens.of_cluster()).application(hosts), BorderLimits())
