"""What is refused before a job is planned."""

from typing import Any

import pytest

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import prepare


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"steering": {"direction": "C9"}}, UnknownNameError, "did you mean"),
        ({"steering": {"direction": "C5"}}, ConfigError, "direction C5 needs a sparse autoencoder"),
        ({"steering": {"further": ["C5"]}}, ConfigError, "direction C5 needs a sparse autoencoder"),
        (
            {"steered_texts": "texts", "steering": {"further": ["LDA"]}},
            ConfigError,
            "texts of others have one direction",
        ),
    ],
)
def test_an_unusable_direction_is_named_before_anything_is_planned(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(load_run_config(None, {"preset": "demo", **settings}), None)  # type: ignore[arg-type]
