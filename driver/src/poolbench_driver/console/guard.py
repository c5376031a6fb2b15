"""Who may ask the console: a browser that showed the cluster's token once, from the console's own pages.

A token is exchanged for a cookie that scripts cannot read and that other sites cannot send. Without a token, on a
page of local files, the names of the machine alone are answered, so that no other site reaches it under its own name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.http.tokens import Tokens

COOKIE = "poolbench_console"
SESSION_S = 12 * 3600
LOGIN = "/login"
_LOOPBACK = ("localhost", "localhost.localdomain")
_HEADERS = {
    b"cache-control": b"no-store",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}


def session_of(token: str, expires_s: int) -> str:
    """Return the value of a cookie that proves knowledge of a token until a time in seconds since the epoch."""
    return f"{expires_s}.{hmac.new(token.encode(), f'console {expires_s}'.encode(), hashlib.sha256).hexdigest()}"


def is_valid(session: str, valid_tokens: Sequence[str]) -> bool:
    """Return whether a cookie was made from one of the valid tokens and has not expired."""
    expires, _, _ = session.partition(".")
    if not (session.isascii() and expires.isdigit() and len(expires) < 12 and int(expires) > time.time()):
        return False
    return any(hmac.compare_digest(session_of(token, int(expires)), session) for token in valid_tokens)


class Guard:
    """ASGI middleware that refuses requests to the console from other sites or without a valid token.

    Args:
        app: The console.
        tokens: The tokens of the cluster. None if the console shows only files of this machine.
        hosts: Further host names that requests may use. The names of this machine and IP addresses are always allowed.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, hosts: Collection[str] = ()) -> None:
        self._app, self._tokens, self._hosts = app, tokens, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or forward it to the console. The headers of every response forbid caching and framing."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in _HEADERS.items() if name not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if self._tokens is not None:
            await self._tokens.refresh()
        request = Request(scope, receive)
        refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return _error(
                421, "host", "the console is not known under this name; POOLBENCH_CONSOLE_HOSTS lists further ones"
            )
        if request.method not in ("GET", "HEAD") and not self._is_same_origin(request, hosts[0]):
            return _error(403, "origin", "only the console's own pages may do this")
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if not path:  # the cookie is of the addresses below
            return RedirectResponse(f"{request.scope['path'].rpartition('/')[2]}/", 307)
        if self._tokens is None or path == LOGIN or self._is_known(request):
            return None
        if path.startswith("/api/"):
            return _error(401, "unauthorized", "sign in again, or send the header `Authorization: Bearer <token>`")
        return RedirectResponse(f"{start_of(request)}{LOGIN.removeprefix('/')}", 303)

    def _is_ours(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "").lower()
        if name in self._hosts or name in _LOOPBACK:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # no other site can take an address in numbers as its name

    def _is_same_origin(self, request: Request, host: str) -> bool:
        if self._has_bearer(request):  # no browser adds this header on its own
            return True
        return urlsplit(request.headers.get("origin", "")).netloc == host

    def _has_bearer(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._tokens is not None and self._tokens.accept(token.strip().encode())

    def _is_known(self, request: Request) -> bool:
        valid_tokens = self._tokens.valid() if self._tokens else ()
        return self._has_bearer(request) or is_valid(request.cookies.get(COOKIE, ""), valid_tokens)


def start_of(request: Request) -> str:
    """Return the address of the console relative to the page of a request.

    The address is relative because a proxy may have removed a prefix from the address of the page.
    """
    path = request.scope.get("raw_path") or request.scope["path"].encode()  # a name in it may have a quoted slash
    return "../" * (path.count(b"/") - request.scope.get("root_path", "").count("/") - 1) or "./"


def signed_in(request: Request, tokens: Tokens, token: str) -> Response | None:
    """Return the response that sets the cookie and opens the console, or None if the token is wrong."""
    if not tokens.accept(token.encode()):
        return None
    # A proxy may end TLS, but the origin is what the browser sees.
    is_https = urlsplit(request.headers.get("origin", str(request.url))).scheme == "https"
    response = RedirectResponse(start_of(request), 303)
    # For an empty path the browser takes that of its own address, which may have a prefix that a proxy takes off
    # (RFC 6265, 5.2.4).
    response.set_cookie(
        COOKIE, session_of(token, int(time.time()) + SESSION_S), max_age=SESSION_S, path=" ", httponly=True,
        samesite="strict", secure=is_https,
    )  # fmt: skip
    return response


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)
