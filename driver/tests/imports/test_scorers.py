"""import holmes, import senteval: sources that are an address, from a server on this machine."""

import http.server
import socket
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.servers.quiet import Quiet
from typer.testing import CliRunner

from poolbench.errors import CorpusError
from poolbench_corpora.probing import ProbingSets
from poolbench_driver.cli.importing import app
from poolbench_driver.imports.scorers import downloaded, is_address

TASK = "tr\tPAST\tIt went .\nte\tPRES\tIt goes .\nva\tPAST\tIt ran .\n"


class Answer(Quiet, http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """Send a file, or the client on to another address."""
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.end_headers()
        elif self.path.startswith("/elsewhere/"):
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
        else:
            super().do_GET()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a server with one task of SentEval, as text and in an archive."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "past_present.txt").write_text(TASK)
    with zipfile.ZipFile(folder / "tasks.zip", "w") as archive:
        archive.write(folder / "past_present.txt", "SentEval-main/data/probing/past_present.txt")
        archive.writestr("SentEval-main/../../outside.txt", TASK)
        archive.writestr("SentEval-main/setup.py", "raise SystemExit")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, directory=str(folder))) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


@pytest.mark.parametrize("name", ["past_present.txt", "tasks.zip", "moved/past_present.txt"])
def test_a_task_is_imported_from_an_address(name: str, server: str, tmp_path: Path) -> None:
    target = tmp_path / "to"
    done = CliRunner().invoke(app, ["senteval", f"{server}/{name}", str(target)], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert f"fetching {server}/{name}" in done.stderr and "fetching" not in done.stdout
    assert [each.id for each in ProbingSets(target).all() if each.folder == target] == ["senteval-past_present"]
    assert sorted(path.name for path in target.iterdir()) == ["senteval-past_present", "senteval-past_present.yaml"]
    assert not list(tmp_path.rglob("outside.txt"))


def test_an_address_that_is_none_is_refused() -> None:
    assert is_address("https://x/y.zip") and is_address("HTTP://x") and not is_address("a/b.zip")
    for wrong in ("file:///etc/passwd", "ftp://x/y.zip", "s3://bucket/y.zip"):
        with pytest.raises(CorpusError, match="begins with https:// or http://"):
            is_address(wrong)


def test_downloads_that_fail_say_why_and_leave_nothing(server: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/a.zip"
    cases = {
        closed: r"a\.zip cannot be fetched \(.*\): connect to a network",
        f"{server}/none.zip": "the server answers 404; check the address",
        f"{server}/elsewhere/a.zip": "cannot be fetched",
        f"{server}/tasks.zip": "has more than 100 bytes",
        "http://127.0.0.1:port/a.zip": "is not an address",
    }
    for address, reason in cases.items():
        with pytest.raises(CorpusError, match=reason), downloaded(address, tmp_path / "to", limit=100):
            pass
    assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())


def test_messages_show_no_password(tmp_path: Path, server: str) -> None:
    address = server.replace("http://", "http://user:secret@") + "/none.zip?token=secret"
    with pytest.raises(CorpusError) as caught, downloaded(address, tmp_path):
        pass
    assert "secret" not in str(caught.value) and "/none.zip" in str(caught.value)
