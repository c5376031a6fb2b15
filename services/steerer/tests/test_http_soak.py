"""A short soak; `bench/soak_steer.py` is the long one."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lane(name="architectures")]
NUM_REQUESTS = 600
BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import soak_steer

    yield soak_steer
    for name in ("soak_steer", "common"):
        sys.modules.pop(name, None)


def test_requests_given_up_at_random_leave_nothing_behind(soak, host, address, tiny_model, model_ref, monkeypatch):
    monkeypatch.setattr(host, "config", host.config.model_copy(update={"model": str(tiny_model)}))
    monkeypatch.setattr(soak, "TOKEN", "secret")
    host.load()
    asyncio.run(soak.soak(host, address, NUM_REQUESTS // 2, num_clients=32, seed=0))  # fills vLLM's own caches
    figures = asyncio.run(soak.soak(host, address, NUM_REQUESTS, num_clients=32, seed=1))
    outcomes = figures["outcomes"]
    assert outcomes.pop("resent", 0) <= NUM_REQUESTS / 20
    assert sum(outcomes.values()) == NUM_REQUESTS
    assert set(outcomes) == {"answered", "given_up", "refused"}
    assert figures["left_in_use"] == {"jobs": 0, "rows": 0, "vectors": 0, "engine_requests": 0}
    # Every request held for ever would be more than this; the long soak bounds growth over 10,000.
    assert max(figures["growth_mib"].values()) < 48
