"""Benchmarks are imported as their scripts import each other."""

import pytest
from bench.tests.benches import BENCH


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
