"""The steerer behind a real HTTP server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

TOKEN = "secret"


@contextmanager
def serving(host: Any, store: Path) -> Iterator[str]:
    """The steerer's HTTP face on ``host``, behind a real server; yields its address."""
    import uvicorn

    from poolbench.http.api import build_api
    from poolbench.storage import Artifacts
    from poolbench.storage.folder import FolderStore
    from poolbench_steerer.service import SteererService

    service = SteererService(host, lambda: Artifacts(FolderStore(store)))
    config = uvicorn.Config(build_api(service, TOKEN), port=0, log_level="warning", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture(scope="session")
def address(host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server on the shared test engine."""
    with serving(host, tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A context manager that serves another host."""
    return lambda host, store=None: serving(host, store or tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def http(address: str) -> Iterator[Any]:
    """An HTTP client of that server."""
    import httpx

    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=address, headers=headers, timeout=300, trust_env=False) as client:
        yield client
