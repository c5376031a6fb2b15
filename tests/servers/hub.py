"""A server that answers as the Hugging Face hub does, for tests of the real client."""

import base64
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
        uploads: Folder that uploads are written into; None refuses them.
    """

    def __init__(self, repositories: Mapping[str, Path], uploads: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.repositories, self.gated, self.broken, self.uploads = dict(repositories), False, "", uploads

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_OFFLINE": "0"}


@contextmanager
def serving(repositories: Mapping[str, Path], uploads: Path | None = None) -> Iterator[Hub]:
    """A hub in a thread of its own."""
    with Hub(repositories, uploads) as server:
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

    def do_POST(self) -> None:
        """What an upload of small files asks for; the files of a commit are written into `uploads`."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        server, path = self.server, self.path.partition("?")[0]
        if server.uploads is None or self.headers.get("Authorization") != "Bearer hf_write":
            return self._send(401, b'{"error": "Invalid credentials"}')
        answer: dict[str, object] = {}
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
            name = name if wanted.get("type", "model") == "model" else f"datasets/{name}"
            server.repositories[name] = server.uploads
            answer = {"url": f"http://127.0.0.1:{server.server_port}/{name}", "name": name, "id": name}
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    file = server.uploads / line["value"]["path"]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(base64.b64decode(line["value"]["content"]))
            name = next(iter(server.repositories))
            url = f"http://127.0.0.1:{server.server_port}/{name}/commit/{COMMIT}"
            answer = {"success": True, "commitOid": COMMIT, "commitUrl": url}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

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
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
