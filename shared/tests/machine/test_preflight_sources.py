"""The check of package sources: what pip is configured with, and indexes that refuse, are silent, or are not there."""

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.servers.authority import issue
from tests.servers.quiet import Quiet

from poolbench.machine import preflight
from poolbench.machine.preflight import Gap, package_sources

#: Pip's own index, as pip says it. Importing pip here would break `import setuptools` in the process of the tests.
PIP_SAYS = "from pip._internal.models import index; print(index.__file__, index.PyPI.simple_url)"
PIP_FILE, PIP_INDEX = subprocess.check_output([sys.executable, "-c", PIP_SAYS], text=True).split()
PIP_FOLDER = str(Path(PIP_FILE).parents[3])

_FIND = """
import json, sys
from poolbench.machine.preflight import SOURCE_CHECKS, find_gaps
gaps = find_gaps("cpu", None, sources=json.loads(sys.argv[1]))
print(json.dumps([gap for gap in gaps if gap.check in SOURCE_CHECKS]))
"""
#: A name server that never answers, and the look-up of names by it alone.
_SILENT_NAMES = """
ip link set lo up
printf 'nameserver 127.0.0.1\\n' > "$1/resolv.conf"
printf 'hosts: dns\\n' > "$1/nsswitch.conf"
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
exec "$@"
"""
_SILENT_SERVER = (
    "import socket\nname_server = socket.socket(type=socket.SOCK_DGRAM)\nname_server.bind(('127.0.0.1', 53))\n"
)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "POOLBENCH_")) or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(preflight, "_ANSWER_S", 30)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, unconfigured: None) -> None:
    """Set a short limit of time; other tests also pass on a machine that others load."""
    monkeypatch.setattr(preflight, "_ANSWER_S", 0.3)


class Index(Quiet, BaseHTTPRequestHandler):
    """An index that gives one answer, or none until it is released."""

    status, released = 200, threading.Event()
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization", "")))
        if not self.status:
            self.released.wait(10)
            return
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def index(status: int, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the address of an index, and the paths that it was asked for with their credentials."""
    handler = type("Handler", (Index,), {"status": status, "released": threading.Event(), "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}/simple", handler.asked
        finally:
            handler.released.set()
            server.shutdown()


def source_gaps(**options: str) -> list[Gap]:
    """Return the gaps of sources, given pip's options."""
    sources = {name.replace("_", "-"): value.split() for name, value in options.items()}
    return preflight._side_by_side(preflight._source_checks(sources))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_one_answer_is_enough_of_one_index_or_several() -> None:
    with index(200) as (address, asked):
        assert not source_gaps(index_url=address)
    assert asked == [("/simple/packaging/", "")]
    with index(404) as (first, _), index(403) as (further, _), index(401) as (closed, _):
        assert not source_gaps(index_url=first, extra_index_url=further)
        (gap,) = source_gaps(index_url=first, extra_index_url=f"{further} {closed}")
    assert gap.message.startswith(closed) and "PIP_EXTRA_INDEX_URL" in gap.remedy


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (401, "answers 401 Unauthorized", "put user name and password into PIP_INDEX_URL or ~/.netrc"),
        (403, "answers 403 Forbidden", "ask for access to it, or name another index in PIP_INDEX_URL"),
        (404, "answers 404 Not Found", "ask for access to it, or name another index in PIP_INDEX_URL"),
        (407, "answers 407 Proxy Authentication Required", "HTTPS_PROXY"),
        (503, "answers 503 Service Unavailable", "try again later, or name another index in PIP_INDEX_URL"),
    ],
)
def test_an_index_that_refuses_is_named_without_its_password(status: int, said: str, remedy: str) -> None:
    with index(status) as (address, asked):
        (gap,) = source_gaps(index_url=address.replace("//", "//user:p%40ss@"))
    assert (gap.check, gap.message, gap.blocking) == ("package index", f"{address} {said}", True)
    assert remedy in gap.remedy and "p%40ss" not in str(gap)
    assert asked[0][1] == f"Basic {base64.b64encode(b'user:p@ss').decode()}"


def test_credentials_come_from_netrc(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with index(200) as (address, asked):
        assert not source_gaps(index_url=address)
    assert asked[0][1] == f"Basic {base64.b64encode(b'user:secret').decode()}"


def test_an_index_that_cannot_be_reached_is_named() -> None:
    address = f"http://127.0.0.1:{closed_port()}/simple"
    (gap,) = source_gaps(index_url=address)
    assert gap.message == f"{address} cannot be reached (Connection refused)" and gap.blocking
    assert gap.remedy == "connect this machine, set HTTPS_PROXY, or name another index in PIP_INDEX_URL"
    (gap,) = source_gaps(index_url="https://index.invalid/simple")
    assert "cannot be reached" in gap.message and gap.blocking


def test_a_proxy_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{proxy}")
    (gap,) = source_gaps(index_url="https://index.invalid/simple")
    said = f"https://index.invalid/simple through the proxy {proxy} cannot be reached (Connection refused)"
    assert (gap.message, gap.remedy) == (said, "correct or unset HTTPS_PROXY, or pip's option proxy")
    with index(200) as (address, asked):
        assert not source_gaps(index_url="http://index.invalid/simple", proxy=address)
    assert asked[0][0] == "http://index.invalid/simple/packaging/"
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"socks5h://127.0.0.1:{proxy.getsockname()[1]}")
        assert not source_gaps(index_url="https://index.invalid/simple")


@pytest.mark.usefixtures("impatient")
def test_a_silent_index_is_a_warning() -> None:
    with index(0) as (address, _):
        (gap,) = source_gaps(index_url=address)
    assert gap.message.startswith(f"{address} does not answer") and not gap.blocking


def test_an_index_that_lets_no_one_connect_is_an_error() -> None:
    """The server never accepts: its queue of connections is full, and the kernel drops the next one."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        (gap,) = source_gaps(index_url=f"http://127.0.0.1:{port}/simple")
        for client in waiting:
            client.close()
    assert "cannot be reached" in gap.message and gap.blocking


@pytest.mark.parametrize(
    ("flags", "start"), [(["--net"], "exec"), (["--net", "--mount"], _SILENT_NAMES)], ids=["none", "silent"]
)
def test_without_a_network_and_without_an_answer_of_its_name_server(
    flags: list[str], start: str, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces cannot be created here")
    silent = start == _SILENT_NAMES
    shell = ["sh", "-ec", start if silent else 'shift; exec "$@"', "sh", str(tmp_path)]
    program = (_SILENT_SERVER if silent else "") + _FIND
    sources = json.dumps({"index-url": ["https://index.invalid/simple"]})
    command = ["unshare", *flags, *shell, sys.executable, "-c", program, sources]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    ((check, message, remedy, blocking),) = json.loads(said.stdout)
    assert (check, blocking) == ("package index", True) and "set HTTPS_PROXY" in remedy
    assert "cannot be reached" in message and ("no connection within" in message) == silent


def test_a_certificate_of_an_unknown_authority_is_an_error_and_a_known_one_is_not(tmp_path: Path) -> None:
    files = issue(tmp_path / "keys")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    with index(200, context) as (address, asked):
        (gap,) = source_gaps(index_url=address)
        assert not source_gaps(index_url=address, cert=str(files.authority))
        (missing,) = source_gaps(index_url=address, cert="/no/such/file")
    assert "has a certificate that is not trusted" in gap.message and "PIP_CERT=<file>" in gap.remedy
    assert len(asked) == 1
    assert "/no/such/file" in missing.message and missing.blocking


def test_folders_must_exist_and_are_all_that_is_looked_at_without_an_index(tmp_path: Path) -> None:
    there, away = tmp_path / "there", tmp_path / "away"
    there.mkdir()
    assert not source_gaps(index_url=there.as_uri(), find_links=f"{there} {there.as_uri()}")
    gaps = source_gaps(index_url=str(away), extra_index_url=away.as_uri(), find_links=str(away))
    assert [gap.message for gap in gaps] == [f"{each} does not exist" for each in (away, away.as_uri(), away)]
    assert [gap.blocking for gap in gaps] == [True, False, True]
    assert [gap.remedy for gap in gaps] == [
        f"correct {name}" for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
    ]
    assert not source_gaps(no_index="true", index_url="/no/such/folder", find_links=str(tmp_path))


def test_pips_own_index_is_asked_where_none_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight._default_index() == PIP_INDEX
    with index(403) as (address, _):
        monkeypatch.setattr(preflight, "_default_index", lambda: address)
        (gap,) = source_gaps()
    monkeypatch.undo()
    assert gap.message == f"{address} answers 403 Forbidden"
    monkeypatch.setattr(preflight, "_of_pip", lambda name: "")
    (gap,) = source_gaps()
    assert gap.message.startswith("not checked") and not gap.blocking


FILES: list[dict[str, Any]] = [
    {},
    {".config/pip/pip.conf": "[global]\nindex-url = https://a/simple\n[install]\nfind-links =\n    /x\n    /y\n"},
    {".pip/pip.conf": "[global]\nindex_url=https://old/\n", ".config/pip/pip.conf": "[global]\nindex-url=https://new/"},
    {".pip/pip.conf": "[install]\nindex-url=https://own/\n", "venv/pip.conf": "[global]\nindex-url=https://site/\n"},
    {".pip/pip.conf": "[install]\nindex-url=https://own/\n", "PIP_INDEX_URL": "https://variable/"},
    {".pip/pip.conf": "[global]\nproxy=http://own/\n", "named": "[global]\ncert=/c\n", "PIP_CONFIG_FILE": "named"},
    {".pip/pip.conf": "[global]\nproxy=http://own/\n", "PIP_CONFIG_FILE": os.devnull},
]


@pytest.fixture(scope="module")
def plain_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without a package."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    return environment


@pytest.mark.parametrize("files", FILES)
def test_sources_are_those_of_pip(
    files: dict[str, str], plain_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip itself says what it reads from the same files and variables."""
    environment = shutil.copytree(plain_environment, tmp_path / "venv", symlinks=True)
    monkeypatch.setenv("PYTHONPATH", PIP_FOLDER)
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, content)
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
    found = package_sources(environment)
    program = (
        "import json\n"
        "from pip._internal.commands import create_command\n"
        "options, _ = create_command('install').parser.parse_args([])\n"
        "print(json.dumps([options.index_url, options.find_links, options.proxy, options.cert]))"
    )
    said = subprocess.run([environment / "bin" / "python", "-c", program], check=True, capture_output=True, text=True)
    index_url, find_links, proxy, cert = json.loads(said.stdout)
    if "index-url" in found:
        assert found["index-url"] == [index_url]
    else:
        assert index_url == PIP_INDEX
    assert (found.get("find-links", []), found.get("proxy", [""]), found.get("cert", [None])) == (
        find_links,
        [proxy],
        [cert],
    )


def test_an_index_of_uv_counts_if_pip_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_INDEX_URL", "https://old/simple")
    assert package_sources(tmp_path)["index-url"] == ["https://old/simple"]
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://new/simple")
    assert package_sources(tmp_path)["index-url"] == ["https://new/simple"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip/simple")
    assert package_sources(tmp_path)["index-url"] == ["https://pip/simple"]
