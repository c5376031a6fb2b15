"""HTTP to the services."""

from __future__ import annotations

import json
from typing import Any

import httpx

from poolbench.errors import EndpointError, PoolbenchError
from poolbench.runtime.settings import ClusterSettings

SERVICES = ("extractor", "pooler", "prober", "steerer", "scorer")


class ServiceError(PoolbenchError):
    """A service answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Services:
    """The services' HTTP verbs, as functions of JSON."""

    def __init__(self, cluster: ClusterSettings, timeout_s: float = 600.0) -> None:
        self._cluster = cluster
        headers = {"Authorization": f"Bearer {cluster.token}"}
        self._http = httpx.Client(
            base_url=cluster.http_address, headers=headers, timeout=timeout_s, trust_env=False
        )

    def get(self, service: str, verb: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET /service/verb."""
        return self._call("GET", service, verb, params=query)

    def post(self, service: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST /service/verb."""
        return self._call("POST", service, verb, json=body)

    def _call(self, method: str, service: str, verb: str, **kwargs: Any) -> dict[str, Any]:
        path = f"/{service}/{verb}"
        try:
            response = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            address = f"{self._cluster.http_address}{path}"
            raise EndpointError(
                f"{service} does not answer at {address}: {error}; is the cluster up? (make cluster-up)"
            ) from None
        if response.status_code == 401:
            raise EndpointError(f"{service} refused the token; POOLBENCH_TOKEN differs from the cluster's")
        if response.is_error:
            raise _service_error(service, response)
        return response.json()


def _service_error(service: str, response: httpx.Response) -> ServiceError:
    try:
        error = response.json()["error"]
        return ServiceError(error["code"], f"{service}: {error['message']}")
    except (json.JSONDecodeError, KeyError, TypeError):
        return ServiceError("failed", f"{service} answered {response.status_code}: {response.text[:200]}")
