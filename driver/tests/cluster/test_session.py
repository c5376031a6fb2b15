"""Status pages name the state of a service by the code of its error, whatever the message says."""

from types import SimpleNamespace
from typing import Any

import pytest

from poolbench.contracts.wire import Exit
from poolbench.errors import EndpointError
from poolbench.settings import ClusterSettings
from poolbench.statuses import Code, ServiceState
from poolbench_driver.cli import status
from poolbench_driver.cluster.services import ServiceError, SlowServiceError, TokenRefusedError
from poolbench_driver.cluster.session import try_health


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"status": "ok", "loaded": 1}, ServiceState.OK),
        ({"status": "silent"}, ServiceState.SILENT),
        (TokenRefusedError("prober"), ServiceState.REFUSED),
        (SlowServiceError("no answer"), ServiceState.BUSY),
        (ServiceError(Code.BUSY, "16 requests are waiting", 429), ServiceState.BUSY),
        (EndpointError("it is not busy, and the token is fine: nothing listens"), ServiceState.DOWN),
    ],
)
def test_codes_decide(answer: Any, state: ServiceState) -> None:
    def health(service: str, timeout_s: float) -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    services: Any = SimpleNamespace(health=health)
    assert try_health(services, "prober") == state


def test_a_refused_token_is_a_failure_of_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(health: ServiceState) -> dict[str, Any]:
        services = [{"service": "prober", "health": health}]
        return {"services": services, "newest_dead_letters": [], "runs": [], "damaged": ""}

    connected = SimpleNamespace(settings=ClusterSettings("", "", token_from="POOLBENCH_TOKEN"))
    monkeypatch.setattr("poolbench_driver.cluster.services.open_services", lambda: connected)
    for health, code in ((ServiceState.OK, Exit.DONE), (ServiceState.REFUSED, Exit.FAILURES)):
        monkeypatch.setattr("poolbench_driver.records.overview.overview", lambda *_, health=health: found(health))
        assert status.status(as_json=True) == code
    assert "prober refused the token" in capsys.readouterr().err
