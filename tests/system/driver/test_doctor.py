"""`doctor --check` against the real extractor."""

from collections.abc import Iterator

import pytest
from driver.tests import test_doctor as of_driver
from driver.tests.test_doctor import Idle, examined
from tests.servers.services import serving

from poolbench.contracts.wire import SERVICES
from poolbench.worker.service import load_service
from poolbench_driver.cluster.services import Services

environment = of_driver.environment


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving({name: load_service(name) if name == "extractor" else Idle(name) for name in SERVICES}) as found:
        yield found


def test_check_loads_the_model_and_measures_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here the extractor is real, and the steerer has no verbs."""
    code, checks = examined(monkeypatch, capsys, "--check")
    assert code == 1 and checks["embedding by demo"][0] == checks["attention of demo"][0] == "ok"
    assert "largest relative difference" in checks["embedding by demo"][1]
    assert checks["steering of demo"][0] == "fail"
    norms = {"median_norm": 157.0, "mean_norm": 742.0, "largest_norm": 22600.0, "num_sinks": 32}
    sinks = [{"token": "The", "count": 9, "num_first": 8}]
    answer = {
        "self_test": {"add_by_hand_nats": 1e-5, "erase_by_hand_nats": 2e-5}, "dtype": "float32", "num_texts": 32,
        "num_tokens": 1226, "layers": [norms], "sinks": sinks,
        "all_reduce": {"num_workers": 2, "num_tokens": 256, "num_bytes": 2_000_000, "median_s": 1e-4},
    }  # fmt: skip
    post = Services.post
    monkeypatch.setattr(
        Services, "post", lambda self, to, verb, body: answer if verb == "check" else post(self, to, verb, body)
    )
    code, checks = examined(monkeypatch, capsys, "--check")
    assert code == 0
    assert checks["steering of demo"][1] == "self-test in float32: largest difference 2e-05 (erase_by_hand_nats)"
    assert checks["all-reduce of demo"][1] == "states of 256 tokens over 2 workers: 100 us, 20 GB/s"
    assert "median 157, mean 742, largest 22,600; 32 sinks" in checks["layer 0 of demo"][1]
    assert checks["sinks of demo"] == (
        "note",
        "of 1226 tokens of 32 texts, by token and how often as the first token of its text: 'The' 9 (8 first)",
    )
