"""A server of JSON requests whose answers a test gives."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.servers import background
from tests.servers.quiet import Quiet

#: From path and body with the key ("Authorization") to status and content; a dictionary is sent as JSON.
Answer = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any] | str]]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a server and the list of what it was asked: bodies with `path` and `key`."""
    seen: list[dict[str, Any]] = []

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            if len(sent) < int(self.headers["content-length"]):
                return  # the client was interrupted
            body = json.loads(sent)
            asked = {"path": self.path, "key": self.headers.get("authorization"), **body}
            seen.append(asked)
            status, content = answer(self.path, asked)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.send_header("retry-after", "0")
            self.end_headers()
            self.wfile.write(data)

    server = background.answering(Handler, answer)
    try:
        yield server.address, seen
    finally:
        server.stop()
