"""`poolbench-driver doctor`: each thing that commonly breaks is found, and named with what to do."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from tests.servers.services import cluster_environment, serving

from poolbench.contracts.wire import SERVICES
from poolbench.errors import ModelError
from poolbench.http import api as http
from poolbench.machine import about
from poolbench.storage.folder import FolderStore
from poolbench_driver.cli import main
from poolbench_driver.doctor import Level
from poolbench_driver.doctor.finding import Finding, clock, free_space

GIB = 2**30


class Idle:
    """A service without verbs; as the extractor it has the model `demo` alone."""

    def __init__(self, name: str) -> None:
        self.name, self.handlers = name, dict[str, Any]()

    def routes(self, router: APIRouter) -> None:
        if self.name == "extractor":
            router.get("/model")(self.model)

    def model(self, model: str) -> dict[str, Any]:
        if Path(model).name not in ("demo", "demo_lm"):
            raise ModelError(f"there is no model {model}")
        return {}

    def health(self) -> dict[str, Any]:
        return {"served": 0}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving({name: Idle(name) for name in SERVICES}) as found:
        yield found


@pytest.fixture
def environment(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    values = cluster_environment(address, tmp_path)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


def examined(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return exit code, and level and message by check."""
    monkeypatch.setattr("sys.argv", ["poolbench-driver", "doctor", "--json", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = json.loads(capsys.readouterr().out)
    assert shown["healthy"] == (ended.value.code == 0)
    return ended.value.code, {each["check"]: (each["level"], each["message"]) for each in shown["checks"]}


Examine = Callable[..., tuple[int, dict[str, tuple[str, str]]]]


@pytest.fixture
def examine(environment: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Examine:
    """``examine(*arguments)``: the command on the services of `address`."""
    return partial(examined, monkeypatch, capsys)


def test_a_healthy_cluster_passes(examine: Examine) -> None:
    code, checks = examine()
    assert code == 0
    expected = {*SERVICES, "conditional writes", "clock of this machine", "model demo"}
    assert all(checks[name][0] == "ok" for name in expected), checks
    assert not [check for check, (level, _) in checks.items() if level == "fail"]


@pytest.mark.parametrize("model", ["gemma", "/no/such/folder"])
def test_models_that_are_not_to_be_had(model: str, examine: Examine) -> None:
    code, checks = examine("--model", model)
    assert code == 1 and checks[f"model {model}"][0] == "fail" and model in checks[f"model {model}"][1]


def test_services_of_another_version_clock_and_without_their_gpu(
    monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    monkeypatch.setattr(about, "steps_version", lambda: "another")
    monkeypatch.setattr(about, "num_gpus", lambda: 2)
    replica = about.about_replica
    monkeypatch.setattr(http, "about_replica", lambda: replica() | {"time_s": 1e9, "disk_free_bytes": GIB // 2})
    code, checks = examine()
    level, message = checks["version of the pooler"]
    assert code == 1 and level == "fail" and "another" in message and "restart the cluster" in message
    assert checks["GPUs of the steerer"][0] == "warn" and "PROFILE=gpu" in checks["GPUs of the steerer"][1]
    assert checks["clock of the prober"][0] == "warn" and "behind" in checks["clock of the prober"][1]
    assert checks["disk of the scorer"][0] == "fail"


def test_a_clock_that_is_off_is_a_warning(monkeypatch: pytest.MonkeyPatch, examine: Examine) -> None:
    of_store = FolderStore.now_s
    monkeypatch.setattr(FolderStore, "now_s", lambda self, path="": of_store(self, path) + 3600)
    code, checks = examine()
    assert code == 0
    assert checks["clock of this machine"][0] == "warn"
    assert checks["clock of this machine"][1].startswith(("3600 s behind", "3599 s behind"))


@pytest.mark.parametrize(
    ("variable", "value", "check", "said"),
    [
        ("TOKEN", "wrong", "scorer", "refused the token"),
        ("BROKER", "redis://:hidden@127.0.0.1:9/0", "broker redis://127.0.0.1:9/0", "does not answer"),
        ("STORE", "s3://bucket", "object store s3://bucket", "POOLBENCH_S3_ENDPOINT"),
        ("HTTP", "http://127.0.0.1:9", "prober", "is the cluster up?"),
    ],
)
def test_a_part_that_is_away_or_refuses_us_is_named(
    variable: str, value: str, check: str, said: str, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    monkeypatch.setenv(f"POOLBENCH_{variable}", value)
    code, checks = examine()
    assert code == 1 and checks[check][0] == "fail" and said in checks[check][1]
    assert "hidden" not in str(checks)


def test_the_machine_is_checked_as_before_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    """Packages are installed already, so their sources are a note."""
    (tmp_path / "system").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "system"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")
    code, checks = examine()
    assert code == 1 and checks["compiler"][0] == "fail" and "g++ is not on PATH" in checks["compiler"][1]
    assert checks["package folder"] == ("note", "/no/such/folder does not exist: correct PIP_FIND_LINKS")


def test_a_client_without_an_engine_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    monkeypatch.setattr("poolbench_driver.doctor.checks.installed_profile", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, checks = examine()
    assert code == 0 and not {"machine", "compiler", "package index"} & checks.keys()


def test_without_a_cluster_the_port_it_would_take_is_looked_at(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    for name in environment:
        monkeypatch.delenv(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "empty"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("POOLBENCH_HTTP_PORT", str(port))
        code, checks = examine()
    assert code == 1 and "make cluster-up" in checks["cluster"][1]
    level, message = checks["port of HTTP"]
    assert level == "fail" and message == (
        f"port {port} is taken, and POOLBENCH_HTTP_PORT names it: unset POOLBENCH_HTTP_PORT"
    )


def test_a_cluster_that_died_leaves_ports_that_nothing_answers(environment: dict[str, str], examine: Examine) -> None:
    state = Path(environment["POOLBENCH_STATE"])
    state.mkdir(exist_ok=True)
    (state / "cluster.json").write_text(json.dumps({"ray_port": 9, "metrics_port": 9}))
    code, checks = examine()
    assert code == 1
    assert (checks["port 9 (Ray)"][0], checks["port 9 (metrics)"][0]) == ("fail", "warn")


@pytest.mark.parametrize(("free", "level"), [(0, Level.FAILURE), (2 * GIB, Level.WARNING), (9 * GIB, Level.OK)])
def test_little_free_space_is_found(free: int, level: Level) -> None:
    assert free_space("runs", free).level is level


@pytest.mark.parametrize(("ahead_s", "level"), [(-61, Level.WARNING), (3, Level.OK), (61, Level.WARNING)])
def test_clocks_may_differ_a_little(ahead_s: float, level: Level) -> None:
    assert clock("x", ahead_s).level is level


def test_findings_are_lines() -> None:
    lines = [Finding("a").line, Finding("b", Level.FAILURE, "why").line, Finding("c", Level.WARNING, "so").line]
    assert lines == ["ok    a", "FAIL  b: why", "warn  c: so"]
