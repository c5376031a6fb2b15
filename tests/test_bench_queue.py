"""The benchmark of the queue: every figure comes out at a tiny size, on each broker with its real consumer."""

from pathlib import Path
from typing import Any

import pytest
from tests.servers import redis as redis_server

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(params=redis_server.BROKERS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    from queueing.brokers import Place

    with redis_server.broker(request.param, tmp_path) as url:
        yield Place.of(url, tmp_path)


def test_every_figure_comes_out(place: Any) -> None:
    from queueing.measure import backlog, enqueueing, observing, rounds, starts

    assert all(value > 0 for value in enqueueing(place, 10).values())
    assert set(observing(place, 2, 2)) == {"depth_ms", "ids_ms"}
    assert rounds(place, 3, 4)["share_of_a_core"] > 0
    with place.consumer():
        start = starts(place, 3, seed=0)
        assert backlog(place, 3)["tasks_per_s"] > 0
    assert 0 < start["p50_ms"] <= start["p95_ms"] <= start["max_ms"]
