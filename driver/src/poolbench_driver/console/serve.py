"""The console of a cluster, as an application of Ray Serve at `/console`."""

# Without postponed annotations: Serve reads those of `app`.
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(options: dict[str, Any] | None = None) -> "Application":
    """Build the application, `poolbench_driver.console.serve:app` in Serve's configuration."""
    from ray import serve

    settings = {"name": "console", "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 64, **(options or {})}
    return serve.deployment(**settings)(serve.ingress(_console)()).bind()


def _console() -> Any:
    """Return the ASGI application of a replica, which keeps copies of the runs it shows while it lives."""
    from poolbench.http.tokens import Tokens
    from poolbench.settings import ClusterSettings, ConsoleSettings
    from poolbench_driver.cluster.services import Services
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.console.app import Console
    from poolbench_driver.console.source import RunSource
    from poolbench_driver.records import RunRecords

    settings = ClusterSettings.load()
    copies = tempfile.mkdtemp(prefix="poolbench-console-")
    source = RunSource(Path(copies), RunRecords(open_artifacts(settings).store))
    hosts = [host.strip() for host in ConsoleSettings.load().hosts.split(",") if host.strip()]
    return Console(source, Services(settings), Tokens.of_cluster()).application(hosts)
