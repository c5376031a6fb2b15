"""An HTTP server in a thread of the test process."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


class Background:
    """A server that answers from its construction until `stop`."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self.address = f"http://{server.server_address[0]!s}:{server.server_port}"
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that are gone: a test may kill them in the middle of a response."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def answering(handler: type[BaseHTTPRequestHandler], owner: Any, host: str = "127.0.0.1") -> Background:
    """Return a server whose handlers have `owner` as an attribute."""
    return Background(_Server((host, 0), type("Handler", (handler,), {"owner": owner})))
