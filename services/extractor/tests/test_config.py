"""Parameters of tasks: each wrong one says what is allowed."""

from pathlib import Path
from typing import Any

import pytest
from services.extractor.tests.conftest import run

from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, LayerError, UnknownStrategyError
from poolbench.storage import Artifacts


@pytest.mark.parametrize(
    ("roles", "change", "error", "message"),
    [
        (["A1_mean/9"], {}, LayerError, "blocks 0..3"),
        (["A1_meen/0"], {}, UnknownStrategyError, "A1_mean"),
        (["nonsense"], {"strategies": []}, ConfigError, "output roles: states/<layer>, <strategy>/<layer>"),
        (["A1_mean/0"], {"layerz": [0]}, ConfigError, "layerz"),
        (["A1_mean/0"], {"dtype": "int3"}, ConfigError, "'float32', 'bfloat16' or"),
    ],
)
def test_wrong_parameters_say_what_is_allowed(
    saved_llama: Path, artifacts: Artifacts, roles: list[str], change: dict[str, Any], error: Any, message: str
) -> None:
    params = {"model": str(saved_llama), "strategies": [{"id": role.split("/")[0]} for role in roles], "layers": [0, 3]}
    outputs = {role: f"out.{role.replace('/', '.')}" for role in roles}
    inputs = {"passages": "corpus.passages.1"}
    task = Task(kind="extractor.extract", inputs=inputs, outputs=outputs, params=params | change)
    with pytest.raises(error, match=message):
        run(task, artifacts)
