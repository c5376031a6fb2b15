"""Services behind a real HTTP server in a thread, without Ray; and the environment that leads the driver to them."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from poolbench.http.api import build_api
from poolbench.worker.service import Service

TOKEN = "only-for-this-test"


@contextmanager
def serving(services: Mapping[str, Service]) -> Iterator[str]:
    """Serves each under its name, as the cluster does; yields the address."""
    api = _by_prefix({name: build_api(service, TOKEN) for name, service in services.items()})
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # a request that comes before the server does waits
        server = uvicorn.Server(uvicorn.Config(api, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


def _by_prefix(apis: Mapping[str, ASGIApp]) -> ASGIApp:
    """An application that hands each request on by the first part of its path, as the proxy of Ray Serve does."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].split("/")[1]
        await apis[name]({**scope, "root_path": f"/{name}"}, receive, send)

    return route


def cluster_environment(address: str, folder: Path, store: Path | None = None) -> dict[str, str]:
    """What the driver reads of a cluster: services at ``address``, all else in ``folder``."""
    return {
        "POOLBENCH_STATE": str(folder / "state"),
        "POOLBENCH_STORE": str(store or folder / "store"),
        "POOLBENCH_BROKER": f"filesystem://{folder}/queue",
        "POOLBENCH_HTTP": address,
        "POOLBENCH_TOKEN": TOKEN,
    }
