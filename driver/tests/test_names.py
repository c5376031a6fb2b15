"""Names of a configuration that are registered but cannot be computed are refused before anything is planned."""

from __future__ import annotations

import pytest

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import prepare


def test_an_unusable_direction_is_named_before_anything_is_planned() -> None:
    def prepared(name: str) -> None:
        prepare(load_run_config(None, {"preset": "demo", "steering": {"direction": name}}), None)  # type: ignore[arg-type]

    with pytest.raises(UnknownNameError, match="did you mean"):
        prepared("C9")
    with pytest.raises(ConfigError, match="direction C5 needs a sparse autoencoder"):
        prepared("C5")
