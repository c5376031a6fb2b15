"""What requests name: their model is looked up beside the event loop."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from services.steerer.tests.conftest import small_engine
from tests.waiting import PATIENCE_S

from poolbench.config import resolve_model
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import steering


def test_streams_go_on_while_the_weights_of_a_model_are_hashed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = threading.Event()

    def resolved(name: str) -> Any:
        assert hashed.wait(PATIENCE_S)
        return resolve_model(name)

    async def scenario() -> Any:
        asked = asyncio.create_task(steering.model_of(host, None))
        await asyncio.sleep(0)
        hashed.set()  # the loop comes here while the weights are read
        return await asked

    host = EngineHost(small_engine(str(tiny_model)))  # starts no engine
    monkeypatch.setattr(steering, "resolve_model", resolved)
    assert asyncio.run(scenario()) == resolve_model(str(tiny_model))
