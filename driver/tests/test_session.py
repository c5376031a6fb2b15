"""Status pages name the state of a service by the code of its error, whatever the message says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from poolbench.errors import EndpointError
from poolbench.statuses import Code, ServiceState
from poolbench_driver.cluster.session import ServiceError, SlowServiceError, TokenRefusedError, try_health


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

    session: Any = SimpleNamespace(services=SimpleNamespace(health=health))
    assert try_health(session, "prober") == state
