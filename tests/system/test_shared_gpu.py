"""One GPU for several services: decisions on measured numbers, and the signs that processes give each other."""

from pathlib import Path

import pytest
from shared.tests.machine.test_gpu import GIB, Device

from poolbench.config import resolve_model
from poolbench.machine.gpu import SharedGpu
from poolbench.settings import SteererSettings
from poolbench_steerer.engine.launch import fitted, needed_bytes


def test_the_needs_of_an_engine_and_its_settings(tmp_path: Path) -> None:
    model, config = resolve_model("demo"), SteererSettings()
    needed = needed_bytes(model, config)
    weights = 4 * 5.8e6
    assert 2 * GIB + weights < needed < 2 * GIB + 4 * weights
    assert fitted(model, config, SharedGpu("steerer", tmp_path, Device(41))).gpu_memory_share == pytest.approx(
        40.5 / 80
    )
