"""The fixtures of the driver's own tests, and its commands beside a service, for tests of the driver with a service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from driver.tests import conftest as of_driver
from tests.servers.services import TOKEN, cluster_environment

from poolbench_driver.cli import main

if TYPE_CHECKING:
    from tests.system.driver.forging import Made

bench, complete = of_driver.bench, of_driver.complete
quicker = of_driver.quicker
driver, environment = of_driver.driver, of_driver.environment
steered, steered_in = of_driver.steered, of_driver.steered_in


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A finished run and its bundle; see `forging`."""
    from tests.system.driver.forging import make

    return make(tmp_path_factory.mktemp("sharing"))


@pytest.fixture
def planned(made: Made) -> Iterator[None]:
    """A rerun plans the run of `made` without a service that describes its model."""
    from poolbench_driver.job import Job

    with patch("poolbench_driver.sharing.rerun.prepare_all", lambda configs, session: [Job(made.plan, session)]):
        yield


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command of the driver in this process, where a traceback fails the test: exit code, stdout and stderr.

    The services are those at `address`, a fixture of the module. The command runs in the folder of the test.
    """
    for name, value in cluster_environment(address, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["poolbench-driver", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert TOKEN not in out + err
        return int(ended.value.code or 0), out, err

    return run
