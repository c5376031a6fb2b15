"""A host without an engine: nothing to load yet, or nothing that can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poolbench.config import resolve_model
from poolbench.errors import ConfigError, ModelError
from poolbench.settings import SteererSettings
from poolbench_steerer.host import EngineHost


def test_a_folder_that_holds_no_model_is_a_model_error(steerer_config: Any, tmp_path: Path) -> None:
    host = EngineHost(steerer_config)
    try:
        with pytest.raises(ModelError, match="the engine cannot start"):
            host.run(resolve_model(str(tmp_path)), lambda engine: engine.register([]))
        assert host.health()["state"] == "idle"
    finally:
        host.close()


def test_a_host_without_jobs_closes_at_once_and_once_only(steerer_config: Any) -> None:
    host = EngineHost(steerer_config)
    assert host.health() == {"state": "idle", "restarts": 0, "jobs": 0, "ready": False}
    host.close()
    host.close()


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STEERER_BANK_SLOTS", "none")
    monkeypatch.setenv("POOLBENCH_STEERER_COLOUR", "red")
    with pytest.raises(ConfigError, match=r"POOLBENCH_STEERER_BANK_SLOTS is .*; .*POOLBENCH_STEERER_COLOUR"):
        SteererSettings.load()
