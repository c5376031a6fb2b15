"""Names of a configuration that are registered but cannot be computed are refused before anything is planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poolbench.config import load_run_config
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.pooling import get_strategy
from poolbench_driver.job import prepare
from poolbench_driver.plan import names


def test_a_run_of_strategies_that_nobody_wrote_yet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "select_strategies", lambda ids: [replace(get_strategy(i), function=None) for i in ids])
    config = load_run_config(None, {"preset": "demo", "strategies": ["A1_mean"]})
    with pytest.raises(ConfigError, match="is implemented yet"):
        prepare(config, None)


def test_an_unusable_direction_is_named_before_anything_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(name: str) -> None:
        prepare(load_run_config(None, {"preset": "demo", "steering": {"direction": name}}), None)  # type: ignore[arg-type]

    with pytest.raises(UnknownNameError, match="did you mean"):
        prepared("C9")
    monkeypatch.setattr(names, "implemented_directions", lambda: ("C1",))
    with pytest.raises(ConfigError, match="direction C2 is not implemented yet; there are C1"):
        prepared("C2")
