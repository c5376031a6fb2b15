"""Routes whose errors have the OpenAI API's shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from poolbench.errors import PoolbenchError
from poolbench_steerer.http.completions.answer import error_body

_LOG = logging.getLogger("poolbench.http")


class OpenAIRoute(APIRoute):
    """A route that answers every error as the OpenAI API does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                status, body = describe(error)
                return JSONResponse(body, status, {"Retry-After": "1"} if status == 429 else None)

        return answer


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of an error; a defect goes to the log and says no more than its type."""
    if isinstance(error, RequestValidationError):
        return 400, _invalid(error.errors())
    if isinstance(error, HTTPException):
        code = "unauthorized" if error.status_code == 401 else "http"
        return error.status_code, error_body(error.status_code, code, str(error.detail))
    if isinstance(error, PoolbenchError):
        return error.http_status, error_body(error.http_status, error.code, str(error))
    _LOG.error("completions", exc_info=error)
    return 500, error_body(500, "internal", f"{type(error).__name__}; the service's log has the details")


def _invalid(issues: Sequence[Any]) -> dict[str, Any]:
    names = [".".join(map(str, issue["loc"][1:])) for issue in issues]  # without "body"
    unknown = [name for name, issue in zip(names, issues, strict=True) if issue["type"] == "extra_forbidden"]
    lines = [f"{name}: {issue['msg']}" if name else issue["msg"] for name, issue in zip(names, issues, strict=True)]
    if unknown:
        return error_body(400, "unknown_field", f"unknown or unsupported field {', '.join(unknown)}", unknown[0])
    return error_body(400, "input", "; ".join(lines), names[0] or None)
