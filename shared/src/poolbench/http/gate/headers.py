"""Read the headers of a request: token, target and kind of the body."""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from poolbench.contracts.wire import HEALTH_PATH, JSON_TYPE, SERVICES
from poolbench.http.tokens import Tokens

#: Read by Ray Serve's proxy. They switch off its time limits and its watch for clients that leave, or choose a replica.
SERVE_HEADERS = {
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"x-session-id",
    b"serve-multiplexed-model-id",
}
_OPEN_PAGES = {"docs", "docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "docs/favicon.png", "openapi.json"}
_ROUTES_OF_SERVE = "/-/routes"
_HEALTH_OF_SERVE = "/-/healthz"


def has_token(scope: Scope, tokens: Tokens) -> bool:
    """Return whether the request carries a valid token, and no second one."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1:
        return False
    scheme, _, credentials = sent[0].partition(b" ")
    return scheme.lower() == b"bearer" and tokens.accept(credentials.strip())


def health_of(scope: Scope) -> str | None:
    """Return the service of a health request; None for other requests."""
    service, _, verb = scope["path"].removeprefix("/").partition("/")
    return service if f"/{verb}" == HEALTH_PATH and service in SERVICES and scope["method"] == "GET" else None


def is_open_page(scope: Scope, open_documentation: bool) -> bool:
    """Return whether a request needs no token: the health of Serve's proxy, and documentation if it is open."""
    service, _, page = scope["path"].removeprefix("/").partition("/")
    is_documentation = (service in SERVICES and page in _OPEN_PAGES) or scope["path"] == _ROUTES_OF_SERVE
    is_open = scope["path"] == _HEALTH_OF_SERVE or (open_documentation and is_documentation)
    return is_open and scope["method"] in ("GET", "HEAD")


def declared_bytes(scope: Scope) -> int:
    """Return Content-Length, or 0 without one; the server has checked that it is a number."""
    return int(Headers(scope=scope).get("content-length", "0"))


def is_json(scope: Scope) -> bool:
    """Return whether a service would parse the body as JSON, also without a content type."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("", JSON_TYPE) or kind.endswith("+json")


def without_control(scope: Scope) -> dict[str, Any]:
    """Return the scope for the services, without headers that change how Serve treats the request."""
    headers = [(name, value) for name, value in scope["headers"] if name.replace(b"_", b"-") not in SERVE_HEADERS]
    return {**scope, "headers": headers}
