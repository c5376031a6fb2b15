"""The state of a local cluster: private files, process identity, one command at a time."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from deploy.local import head, state

from poolbench.errors import ConfigError


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def cluster(tmp_path: Path, clean: None) -> state.Cluster:
    return state.new_cluster(tmp_path)


def _sleeper(cluster: state.Cluster, seconds: int = 60) -> subprocess.Popen[bytes]:
    environment = {**os.environ, state.CLUSTER_ID_VARIABLE: cluster.cluster_id}
    command = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def test_tokens_and_record_are_for_their_owner_only(cluster: state.Cluster, tmp_path: Path) -> None:
    state.save(tmp_path, cluster)
    for path in (cluster.token_file, cluster.ray_token_file, tmp_path / "cluster.json"):
        assert Path(path).stat().st_mode & 0o777 == 0o600
    token = Path(cluster.ray_token_file).read_text()
    assert len(bytes.fromhex(token)) == 32
    assert token not in (tmp_path / "cluster.json").read_text()
    assert state.load(tmp_path) == cluster


def test_a_folder_that_others_could_read_is_closed(
    clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "open"))
    assert state.state_folder().stat().st_mode & 0o777 == 0o700


def test_a_later_start_keeps_the_tokens(cluster: state.Cluster, tmp_path: Path) -> None:
    before = Path(cluster.token_file).read_text()
    assert Path(state.new_cluster(tmp_path).token_file).read_text() == before


def test_a_record_of_another_version_is_no_cluster(cluster: state.Cluster, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"store": "/x"}))
    assert state.load(tmp_path) is None


def test_metrics_take_no_port_of_rays_workers(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_METRICS_PORT", "10002")
    with pytest.raises(ConfigError, match=r"POOLBENCH_METRICS_PORT.*10002 to 19999"):
        state.new_cluster(tmp_path)


def test_a_reused_process_id_is_not_the_cluster(cluster: state.Cluster) -> None:
    cluster.pid, cluster.pid_started = os.getpid(), psutil.Process().create_time()
    assert cluster.runs()
    cluster.pid_started -= 3600
    assert not cluster.runs()
    assert cluster.processes() == []


def test_stop_ends_the_clusters_processes_and_no_other(cluster: state.Cluster) -> None:
    ours, other = _sleeper(cluster), subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        cluster.pid, cluster.pid_started = ours.pid, psutil.Process(ours.pid).create_time()
        assert [process.pid for process in cluster.processes()] == [ours.pid]
        assert head.stop(cluster, print) == 1
        assert not psutil.pid_exists(ours.pid)
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_one_command_at_a_time(tmp_path: Path) -> None:
    with (
        state.exclusive(tmp_path),
        pytest.raises(ConfigError, match="another cluster command"),
        state.exclusive(tmp_path),
    ):
        pass


def test_a_taken_port_is_passed_over_unless_asked_for(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("POOLBENCH_HTTP_PORT", str(port))
        with pytest.raises(ConfigError, match="POOLBENCH_HTTP_PORT"):
            state.new_cluster(tmp_path)
    assert state.new_cluster(tmp_path).http == f"http://127.0.0.1:{port}"


def test_http_and_metrics_have_different_ports(tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    port = state.free_port()
    monkeypatch.setitem(state.PORTS, "POOLBENCH_METRICS_PORT", (port, "metrics"))
    assert state.new_cluster(tmp_path).metrics_port == port
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", str(port))
    planned = state.new_cluster(tmp_path)
    assert planned.http == f"http://127.0.0.1:{port}" and planned.metrics_port not in (0, port)
    monkeypatch.setenv("POOLBENCH_METRICS_PORT", str(port))
    with pytest.raises(ConfigError, match=rf"port {port} \(POOLBENCH_METRICS_PORT\) is also the port of HTTP"):
        state.new_cluster(tmp_path)


def test_the_clusters_environment_names_tokens_by_file_and_reports_nothing(
    cluster: state.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = head.environment(cluster, tmp_path)
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["OMP_NUM_THREADS"] == "7"
    assert Path(cluster.ray_token_file).read_text() not in environment.values()
