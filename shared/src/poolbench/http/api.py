"""The HTTP application of a service: token check, health, docs, and errors as JSON with a code."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from poolbench import __version__
from poolbench.contracts.wire import ERROR_HEADERS, HEALTH_PATH, HTTP_CODES
from poolbench.errors import PoolbenchError
from poolbench.http.error_form import message_of
from poolbench.http.openapi import Health, ServiceApi
from poolbench.http.tokens import Tokens
from poolbench.machine.about import about_replica
from poolbench.machine.memory import OUT_OF_MEMORY, hides_out_of_memory, is_out_of_memory
from poolbench.statuses import Code, ServiceState
from poolbench.worker.service import Service

#: Characters of an error message.
MAX_MESSAGE = 4_000
_LOG = logging.getLogger("poolbench.http")
_BEARER = HTTPBearer(auto_error=False, scheme_name="bearer", description="The token of the cluster.")

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


def build_api(service: Service, token: str | Tokens, folders: Mapping[str, str] | None = None) -> FastAPI:
    """Return the FastAPI application of a service, with the verbs of its `routes`, which require the bearer token.

    Without it `/health` says only "ok", and `/docs` is open. With it `/health` also has `folders`, the ids of the
    cluster's folders as this replica sees them, for a driver to compare. Raise ConfigError for an empty token.
    """
    tokens = Tokens.fixed(token) if isinstance(token, str) else token

    async def holds_token(credentials: Credentials) -> bool:
        await tokens.refresh()
        return credentials is not None and tokens.accept(credentials.credentials.encode())

    async def require_token(valid: Annotated[bool, Depends(holds_token)]) -> None:
        if not valid:
            raise HTTPException(401, "missing or wrong token: send the header `Authorization: Bearer <token>`")

    api = ServiceApi(title=f"PoolBench {service.name}", version=__version__)

    @api.get(
        HEALTH_PATH,
        response_model=Health,
        responses={503: {"model": Health, "description": "The service does not work."}},
        openapi_extra={"security": [{}]},  # the token is optional
    )
    async def health(valid: Annotated[bool, Depends(holds_token)], response: Response) -> dict[str, Any]:
        """Whether the service works, 503 if it says that it does not; with the token, what it has loaded and served."""
        details = {"status": ServiceState.OK, **({"folders": folders} if folders else {}), **service.health()}
        if details["status"] != ServiceState.OK:
            response.status_code = 503
        if not valid:
            return {"status": details["status"]}
        return {**details, "replica": await run_in_threadpool(about_replica)}

    router = APIRouter(dependencies=[Depends(require_token)])
    service.routes(router)
    api.include_router(router)
    _answer_errors_as_json(api)
    return api


def _answer_errors_as_json(api: FastAPI) -> None:
    @api.exception_handler(PoolbenchError)
    async def poolbench_error(_: Request, error: PoolbenchError) -> JSONResponse:
        return error_body(error.http_status, error.code, str(error))

    @api.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(map(str, item['loc']))}: {message_of(item)}" for item in error.errors()]
        return error_body(422, Code.INPUT, "; ".join(lines))

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if hides_out_of_memory(error):
            return error_body(503, Code.OUT_OF_MEMORY, OUT_OF_MEMORY)
        code = HTTP_CODES.get(error.status_code, Code.HTTP)
        headers = dict(error.headers or {})
        if error.status_code == 405:  # `Allow` names the methods of all routes of the path, not of the first alone
            routes = [route for route in request.app.routes if isinstance(route, Route) and route.include_in_schema]
            here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
            if methods := {method for route in here for method in route.methods or ()}:
                headers["Allow"] = ", ".join(sorted(methods))
        return error_body(error.status_code, code, str(error.detail), headers)

    @api.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        if is_out_of_memory(error):
            return error_body(503, Code.OUT_OF_MEMORY, OUT_OF_MEMORY)
        _LOG.error("%s %s", request.method, request.url.path, exc_info=error)
        return error_body(500, Code.INTERNAL, f"{type(error).__name__}; the service's log has the details")


def error_body(http_status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error response. A message that quotes what was sent is shortened and made valid UTF-8."""
    all_headers = {**ERROR_HEADERS.get(http_status, {}), **(headers or {})}
    short_message = message[:MAX_MESSAGE].encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": {"code": code, "message": short_message}}, http_status, all_headers)
