"""A local cluster listens on loopback only, and its folders are closed: the parts that need no cluster."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from deploy.local import state
from deploy.local.head import exposed, make_private, require_loopback
from tests.pages import REPOSITORY
from tests.ports import NAMED, unnamed
from tests.waiting import PATIENCE_S

from poolbench.errors import ConfigError

LISTENER = """
import socket, sys
six = ":" in sys.argv[1]  # with IPv4 addresses too, as Ray's servers have them
family = socket.AF_INET6 if six else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family, dualstack_ipv6=six)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("address", "open_to_others"), [("127.0.0.1", False), ("::ffff:127.0.0.1", False), ("0.0.0.0", True), ("::", True)]
)
def test_ports_beyond_loopback_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, open_to_others: bool
) -> None:
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", "0")
    cluster = state.new_cluster(tmp_path)
    command = [sys.executable, "-c", LISTENER, address]
    environment = {**os.environ, state.CLUSTER_ID_VARIABLE: cluster.cluster_id}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin and process.stdout
        port = process.stdout.readline().strip()
        assert port
        cluster.pid, cluster.pid_started = process.pid, psutil.Process(process.pid).create_time()
        try:
            assert any(f":{port} (" in line for line in exposed(cluster)) is open_to_others
            assert [line for line in unnamed(cluster) if f":{port};" in line], "no table names this process"
            if open_to_others:
                with pytest.raises(ConfigError, match=rf"1 ports can be reached.*:{port} "):
                    require_loopback(cluster)
            else:
                require_loopback(cluster)
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)


def test_the_page_on_security_has_the_table_of_ports() -> None:
    page = (REPOSITORY / "docs" / "security.md").read_text("utf-8")
    text = page.partition("## Ports")[2].partition("\n### ")[0]
    assert all(f"| `{each.process}` | {each.most} | {each.purpose} |" in text for each in NAMED)
    assert text.count("\n| `") == len(NAMED)


def test_a_private_folder_is_closed_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    assert make_private(tmp_path / "open").stat().st_mode & 0o777 == 0o700
    assert make_private(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(ConfigError, match="must be a folder of user"):
        make_private(tmp_path / "link")


def test_rays_folder_lies_in_a_folder_of_ours(tmp_path: Path) -> None:
    place = Path(state.new_cluster(tmp_path).ray_temp)
    assert place.name == "ray" and place.parent.name.startswith(f"poolbench-{os.getuid()}-")
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700


def test_serve_opens_the_port_of_a_replica_as_the_loopback_hook_expects() -> None:
    """`poolbench.runtime.replica` replaces this name; a new version of Ray may need another hook."""
    from ray.serve._private import replica

    assert callable(replica.add_port_to_grpc_server)
    assert 'add_port_to_grpc_server(self._server, "[::]:0")' in inspect.getsource(replica)
