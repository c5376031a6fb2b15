"""Callback of Ray Serve's HTTP proxy at its start: RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`.

Serve accepts middlewares, but no protocol for its server. The protocol is looked up by name in a table of uvicorn, so
the entry of that table is replaced in the proxy's process.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from poolbench.http.gate.gate import Gate
from poolbench.http.gate.request_ids import RequestIds
from poolbench.http.tokens import Tokens
from poolbench.queue.monitor import QueueMonitor
from poolbench.settings import ClusterSettings, GateSettings, HttpSettings
from poolbench.telemetry import record_to_ray

if TYPE_CHECKING:
    from starlette.middleware import Middleware

#: Seconds that the gate waits beyond the deadline of the services, for those that are lost.
EXTRA_DEADLINE_S = 30.0


def middlewares() -> list[Middleware]:
    """Return the gate and the ids of requests; install bounded connections for the server that is about to start.

    Raise ConfigError if there is no token, or a setting is wrong.
    """
    import uvicorn.config
    from starlette.middleware import Middleware

    from poolbench.http.gate.protocol import protocol_class

    settings, tokens = GateSettings.load(), Tokens.of_cluster()
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol_class(settings)  # type: ignore[assignment]
    # Otherwise every client on this machine could name itself another address, with `X-Forwarded-For`.
    os.environ.setdefault("FORWARDED_ALLOW_IPS", "")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    deadline_s = HttpSettings.load().deadline_s + EXTRA_DEADLINE_S
    if record_to_ray():
        QueueMonitor(ClusterSettings.load().broker_url).start()
    gate = Middleware(Gate, tokens=tokens, settings=settings, deadline_s=deadline_s, asleep=asleep_services)
    return [gate, Middleware(RequestIds)]  # the last one is the outermost


def asleep_services() -> set[str]:
    """Return the applications of Serve that have scaled to zero: they run without a replica, or the last one ends."""
    from ray import serve
    from ray.serve.schema import ApplicationStatus, ReplicaState

    return {
        name
        for name, application in serve.status().applications.items()
        if application.status == ApplicationStatus.RUNNING
        and not any(
            count
            for deployment in application.deployments.values()
            for state, count in deployment.replica_states.items()
            if state != ReplicaState.STOPPING
        )
    }
