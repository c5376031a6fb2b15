"""Settings from the environment: every name is declared once, and others are refused wherever a process starts."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import REPOSITORY, tracked

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench.http.gate.serve import middlewares
from poolbench.runtime.replica import Replica
from poolbench.settings import (
    ExtractorSettings,
    FolderSettings,
    MemorySettings,
    PlaceSettings,
    ScorerSettings,
    Settings,
    SteererSettings,
)
from poolbench_driver.cli import main

_NAME = re.compile(r"\bPOOLBENCH_[A-Z0-9_]*[A-Z0-9]\b")
_FOLDERS = ("shared", "corpus", "services", "driver", "deploy", "docs", "recipes", "bench")
_TEXT = (".py", ".md", ".yaml", ".toml", "Dockerfile")
#: Commands of the deployment: those that set up their own process are started in one.
IN_PROCESS = ("deploy.local.cluster", "deploy.docker.compose", "deploy.kuberay.cluster")
STARTED = (("deploy.nodes.worker", "127.0.0.1", "prober"), ("deploy.nodes.head",), ("deploy.docker.healthy",))


def declared() -> list[str]:
    """The variables of all settings."""
    return [model.variable(field) for model in Settings.models for field in model.model_fields]


def test_each_variable_is_declared_once() -> None:
    assert len(declared()) == len(set(declared()))


def test_every_name_in_the_repository_is_declared() -> None:
    """A name in a page, a message or a compose file may end early, as in `POOLBENCH_S3_*`."""
    known, unknown = declared(), {}
    files = tracked("README.md", *(f"{folder}/*" for folder in _FOLDERS))
    for file in files:
        if "tests" not in file.relative_to(REPOSITORY).parts and file.name.endswith(_TEXT):
            found = set(_NAME.findall(file.read_text("utf-8")))
            unknown |= {one: file.name for one in found if not any(each.startswith(one) for each in known)}
    assert not unknown


@pytest.mark.parametrize(("sent", "value"), [("true", True), ("1", True), ("Yes", True), ("on", True), ("off", False)])
def test_switches_are_as_people_write_them(sent: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for model, field in (
        (ScorerSettings, "trust_pickle"),
        (ExtractorSettings, "trust_remote_code"),
        (MemorySettings, "shared_machine"),
        (SteererSettings, "eager_start"),
    ):
        monkeypatch.setenv(model.variable(field), sent)
        assert getattr(model.load(), field) is value


@pytest.mark.parametrize(
    ("name", "sent", "allowed"),
    [
        ("POOLBENCH_SCORER_TRUST_PICKLE", "perhaps", "true, 1, yes or on"),
        ("POOLBENCH_HTTP_PORT", "80000", "less than 65536"),
        ("POOLBENCH_GATE_MAX_JSON_MIB", "0", "greater than 0"),
        ("POOLBENCH_GATE_MAX_JSON_MIB", "much", "a valid number"),
        ("POOLBENCH_HTTP_DEADLINE_S", "0", "greater than 0"),
        ("POOLBENCH_HTTP_DEADLINE_S", "inf", "a finite number"),
        ("POOLBENCH_HTTP_DEADLINE_S", "nan", "a finite number"),
        ("POOLBENCH_MEMORY_GIB", "-1", "greater than or equal to 0"),
        ("POOLBENCH_MEMORY_GIB", "inf", "a finite number"),
        ("POOLBENCH_MEMORY_GIB", "nan", "a finite number"),
        ("POOLBENCH_TRACES", "collector:4317", "`http://127.0.0.1:4318`"),
        ("POOLBENCH_STEERER_DEVICE", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("POOLBENCH_EXTRACTOR_DEVICE", "tpu", "`cuda:1`"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    name: str, sent: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, sent)
    model = next(model for model in Settings.models if name in map(model.variable, model.model_fields))
    with pytest.raises(ConfigError) as refused:
        model.load()
    assert all(part in str(refused.value) for part in (name, repr(sent), allowed, "docs/operations/settings.md"))


def test_secrets_are_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = [name for name in declared() if re.search("(TOKEN|TOKEN_NEXT|(ACCESS|SECRET)_KEY|BROKER)$", name)]
    for name in secrets:
        monkeypatch.setenv(name, "very-secret")
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", "none")
    with pytest.raises(ConfigError) as refused:
        PlaceSettings.load()
    assert len(secrets) == 5 and "very-secret" not in str(refused.value)
    monkeypatch.delenv("POOLBENCH_HTTP_PORT")
    assert "very-secret" not in repr([model.load() for model in Settings.models])


def test_empty_variables_are_unset_and_folders_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_ASSETS", "")
    monkeypatch.setenv("POOLBENCH_MODEL_FOLDERS", f"/a{os.pathsep}/b{os.pathsep}")
    assert FolderSettings.load() == FolderSettings(model_folders=(Path("/a"), Path("/b")))
    assert FolderSettings.load().assets is None


def test_an_unknown_name_stops_services_and_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STOER", "/somewhere")
    for start in (lambda: Replica("prober"), middlewares, *(model.load for model in Settings.models)):
        with pytest.raises(ConfigError, match="'POOLBENCH_STOER'; did you mean POOLBENCH_STORE"):
            start()


def test_an_unknown_name_stops_every_command_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("poolbench_store", "/somewhere")
    monkeypatch.setattr("sys.argv", ["poolbench-driver", "ls", "strategies"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Exit.USAGE
    assert "'poolbench_store'; did you mean POOLBENCH_STORE" in capsys.readouterr().err


@pytest.fixture
def misspelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown name in the environment, and a client of Docker that does nothing."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    monkeypatch.setenv("POOLBENCH_STOER", "x")


@pytest.mark.usefixtures("misspelled")
@pytest.mark.parametrize("module", IN_PROCESS)
def test_an_unknown_name_stops_every_command_of_the_deployment(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [module, "status"])
    assert importlib.import_module(module).main() != 0
    shown = capsys.readouterr()
    assert "POOLBENCH_STOER" in " ".join((shown.out + shown.err).split())


@pytest.mark.usefixtures("misspelled")
@pytest.mark.parametrize("command", STARTED, ids=lambda command: command[0])
def test_an_unknown_name_stops_every_node(command: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", *command]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "POOLBENCH_STOER" in " ".join((done.stdout + done.stderr).split())
