"""`corpus import hf:...`: the real client of the hub against a server of this test, and its cache without one."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from poolbench.corpora.io import CorpusManifest, read_concept, write_corpus
from poolbench.corpora.planted import build_planted

LONG_S = 600
COMMIT = "5" * 40
NAME = "owner/data"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one dataset as the hub does: its commit, its tree and its files.

    Attributes:
        gated: Answer as for a dataset whose licence nobody accepted.
        broken: A file whose answers end after half of it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.folder, self.gated, self.broken = folder, False, ""

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_HUB_OFFLINE": "0"}


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = sorted(file for file in self.server.folder.rglob("*") if file.is_file())
        names = {file.relative_to(self.server.folder).as_posix(): file for file in files}
        named = path.removeprefix(f"/datasets/{NAME}/resolve/{COMMIT}/")
        if NAME not in path:
            self._send(404, b"")
        elif self.server.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif path.startswith(f"/api/datasets/{NAME}/revision/"):
            self._send(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(f"/api/datasets/{NAME}/tree/"):
            tree = [{"type": "file", "path": n, "size": f.stat().st_size, "oid": _etag(f)} for n, f in names.items()]
            self._send(200, json.dumps(tree).encode())
        elif named in names:
            file = names[named]
            self._send_file(file.read_bytes(), _etag(file), broken=named == self.server.broken)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

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

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    names = ("hedging", "toxicity")
    tables = [build_planted(name, seed=0, num_train=8, num_test=4, num_scorer=4) for name in names]
    manifest = CorpusManifest(revision="1", tokenizer="words", window=(1, 500))
    write_corpus(pa.concat_tables(tables), tmp_path / "served", manifest, allow_sensitive=True)
    (tmp_path / "served/restricted/toxicity").rename(tmp_path / "served/toxicity")  # as the card publishes it
    with Hub(tmp_path / "served") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""}


def driver(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, because the hub's client reads its settings when it is imported."""
    command = [sys.executable, "-m", "poolbench_driver.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_a_dataset_is_downloaded_and_imported_and_again_without_a_network(
    environment: dict[str, str], hub: Hub, tmp_path: Path
) -> None:
    done = driver({**environment, **hub.environment}, "corpus", "import", f"hf:{NAME}", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "left out, because they are sensitive (--sensitive takes them): toxicity" in done.stdout
    expected = read_concept(tmp_path / "served", "hedging")
    assert read_concept(tmp_path / "out", "hedging")["text"].equals(expected["text"])
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    done = driver(offline, "corpus", "import", f"hf:{NAME}@main", str(tmp_path / "again"), "--sensitive")
    assert done.returncode == 0, done.stderr
    assert (
        read_concept(tmp_path / "again", "toxicity").num_rows == read_concept(tmp_path / "served", "toxicity").num_rows
    )
    assert read_concept(tmp_path / "again", "hedging")["text"].equals(expected["text"])


def test_a_download_that_breaks_off_writes_nothing_and_continues(
    environment: dict[str, str], hub: Hub, tmp_path: Path
) -> None:
    online, command = {**environment, **hub.environment}, ("corpus", "import", f"hf:{NAME}", str(tmp_path / "out"))
    hub.broken = "hedging/test_pos.jsonl"
    done = driver(online, *command)
    assert done.returncode == 2 and f"dataset {NAME} could not be downloaded" in done.stderr
    assert "the same command continues" in done.stderr and "Traceback" not in done.stderr
    done = driver({**environment, "HF_HUB_OFFLINE": "1"}, *command)
    assert done.returncode == 2, "a part of a dataset is not taken for the whole"
    assert not (tmp_path / "out").exists()
    hub.broken = ""
    assert driver(online, *command).returncode == 0


def test_what_cannot_be_had_says_what_to_do(environment: dict[str, str], hub: Hub, tmp_path: Path) -> None:
    online, output = {**environment, **hub.environment}, str(tmp_path / "out")
    hub.gated = True
    gated = driver(online, "corpus", "import", f"hf:{NAME}", output)
    assert gated.returncode == 2 and f"dataset {NAME} is gated" in gated.stderr and "HF_TOKEN" in gated.stderr
    offline = driver({**environment, "HF_HUB_OFFLINE": "1"}, "corpus", "import", "hf:owner/other", output)
    assert offline.returncode == 2 and "give its folder instead" in offline.stderr
    wrong = driver(environment, "corpus", "import", "hf:other", output)
    assert wrong.returncode == 2 and "write hf:OWNER/NAME" in wrong.stderr
    assert not Path(output).exists()
