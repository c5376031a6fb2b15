"""A server that answers as the Hugging Face hub does, for tests of the real client."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.quiet import Quiet

COMMIT = "5" * 40


class Hub(http.server.ThreadingHTTPServer):
    """Serves datasets and models as the hub does: their commit, their tree and their files.

    Attributes:
        repositories: Folders by name, those of datasets as `datasets/OWNER/NAME`.
        gated: Answer as for a repository whose licence nobody accepted.
        broken: A file whose answers end after half of it.
    """

    def __init__(self, repositories: Mapping[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repositories, self.gated, self.broken = repositories, False, ""

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_OFFLINE": "0"}


@contextmanager
def serving(repositories: Mapping[str, Path]) -> Iterator[Hub]:
    """A hub in a thread of its own."""
    with Hub(repositories) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Answer(Quiet, http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = next((each for each in self.server.repositories if f"/{each.removeprefix('datasets/')}/" in path), None)
        if name is None:
            return self._send(404, b"")
        if self.server.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        folder = self.server.repositories[name]
        files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
        api = f"/api/{name}" if name.startswith("datasets/") else f"/api/models/{name}"
        asked = path.removeprefix(f"/{name}/resolve/{COMMIT}/")
        if path.startswith(f"{api}/revision/"):
            content = {"id": name.removeprefix("datasets/"), "sha": COMMIT, "siblings": []}
            return self._send(200, json.dumps(content).encode())
        if path.startswith(f"{api}/tree/"):
            tree = [{"type": "file", "path": n, "size": f.stat().st_size, "oid": _etag(f)} for n, f in files.items()]
            return self._send(200, json.dumps(tree).encode())
        if asked in files:
            content = files[asked].read_bytes()
            return self._send_file(content, _etag(files[asked]), broken=asked == self.server.broken)
        return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _send_file(self, content: bytes, etag: str, *, broken: bool) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if broken and start:
            self._send(503, b"")
        else:
            self._send(206 if start else 200, content[start:], headers, cut=broken)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False) -> None:
        self.send_response(status)
        for field, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(field, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
