"""An HTTP server in a thread of the test process."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


class Background:
    """A server that answers from its construction until `stop`."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self.address = f"http://127.0.0.1:{server.server_port}"
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answering(handler: type[BaseHTTPRequestHandler], owner: Any) -> Background:
    """Return a server whose handlers have `owner` as an attribute."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"owner": owner}))
    server.daemon_threads = True
    return Background(server)
