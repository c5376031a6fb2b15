"""What the machine lacks is said before anything is started."""

from __future__ import annotations

import pytest
from deploy.local import machine

from poolbench.errors import ConfigError


def test_missing_system_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_installed", lambda package: True)
    monkeypatch.setattr(machine, "_has_numa", lambda: True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"needs g\+\+; on Debian or Ubuntu: apt-get install g\+\+"):
        machine.check_machine()


def test_this_machine_has_what_it_needs() -> None:
    machine.check_machine()


def test_gpu_machines_need_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_installed", lambda package: False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    machine.check_machine()
