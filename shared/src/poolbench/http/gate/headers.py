"""Read the headers of a request: token, target and size of the body."""

import re
from typing import Any

from starlette.types import Scope

from poolbench.contracts.wire import HEALTH_PATH, JSON_TYPE, SERVICES
from poolbench.http.gate.refusal import RefusalError
from poolbench.http.tokens import Tokens
from poolbench.statuses import Code

#: Read by Ray Serve's proxy. They switch off its time limits and its watch for clients that leave, or choose a replica.
SERVE_HEADERS = {
    "x-request-timeout-seconds",
    "x-request-disconnect-disabled",
    "x-session-id",
    "serve-multiplexed-model-id",
}
REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_OPEN_PAGES = {"docs", "docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png", "openapi.json"}
_ROUTES_OF_SERVE = "/-/routes"
_HEALTH_OF_SERVE = "/-/healthz"
_UNAUTHORIZED = "missing or wrong token: send the header `Authorization: Bearer <token>`"


def holder_of(scope: Scope, tokens: Tokens) -> str | None:
    """Return the name of the valid token that the request carries, once; None without one."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1:
        return None
    scheme, _, credentials = sent[0].partition(b" ")
    name = tokens.holder(credentials.strip())
    return name if scheme.lower() == b"bearer" else None


def health_of(scope: Scope) -> str | None:
    """Return the service of a health request; None for other requests."""
    service, _, verb = scope["path"].removeprefix("/").partition("/")
    return service if f"/{verb}" == HEALTH_PATH and service in SERVICES and scope["method"] == "GET" else None


def require_token_or_open_page(scope: Scope, holds: bool, open_documentation: bool) -> None:
    """Let only the health of Serve's proxy, and documentation if it is open, pass without a token.

    Raise RefusalError (401).
    """
    service, _, page = scope["path"].removeprefix("/").partition("/")
    is_documentation = (service in SERVICES and page in _OPEN_PAGES) or scope["path"] == _ROUTES_OF_SERVE
    is_open = scope["path"] == _HEALTH_OF_SERVE or (open_documentation and is_documentation)
    if not holds and not (is_open and scope["method"] in ("GET", "HEAD") and not sends_body(scope)):
        raise RefusalError(401, Code.UNAUTHORIZED, _UNAUTHORIZED, closes=sends_body(scope))


def sends_body(scope: Scope) -> bool:
    """Return whether a body follows the headers."""
    headers = scope["headers"]
    return any(n == b"transfer-encoding" or (n == b"content-length" and value.strip(b"0 ")) for n, value in headers)


def declared_bytes(scope: Scope) -> int | None:
    """Return Content-Length; the server has checked that it is a number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), None)


def is_json(scope: Scope) -> bool:
    """Return whether a service would parse the body as JSON, also without a content type."""
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    kind = kind.partition(b";")[0].strip().lower()
    return kind in (b"", JSON_TYPE.encode()) or kind.endswith(b"+json")


def without_control(scope: Scope) -> dict[str, Any]:
    """Return the scope for the services, without headers that change how Serve treats the request."""
    kept = [(name, value) for name, value in scope["headers"] if _passes(name.decode("latin-1"), value)]
    return {**scope, "headers": kept}


def _passes(name: str, value: bytes) -> bool:
    if name == REQUEST_ID:
        return _REQUEST_ID.fullmatch(value) is not None
    return name.replace("_", "-") not in SERVE_HEADERS
