"""The console of a cluster, which Ray Serve runs at `/console` (`poolbench.runtime.serve.web_app`)."""

import os
import tempfile
from pathlib import Path

from poolbench.http.border import Border, BorderLimits
from poolbench.http.tokens import Tokens
from poolbench.settings import ClusterSettings, ConsoleSettings
from poolbench.storage import store_id
from poolbench_driver.cluster.services import Services
from poolbench_driver.cluster.session import open_artifacts
from poolbench_driver.console.app import Console
from poolbench_driver.records import Runs
from poolbench_driver.records.record import RunRecords


def application() -> Border:
    """Return the ASGI application of a console replica. The replica caches copies of runs in a temporary folder."""
    settings = ClusterSettings.load()
    store = open_artifacts(settings).store
    copies = Path(tempfile.gettempdir(), f"poolbench-console-{os.getuid()}-{store_id(store)[:8]}")
    copies.mkdir(mode=0o700, exist_ok=True)
    console = Console(Runs(copies, RunRecords(store)), Services(settings), Tokens.of_cluster())
    return Border(console.application(ConsoleSettings.load().names), BorderLimits())
