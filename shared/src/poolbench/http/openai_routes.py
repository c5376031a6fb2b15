"""Routes whose errors have the OpenAI API's form, and responses to unknown paths and methods."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from poolbench.contracts.wire import ERROR_HEADERS, HTTP_CODES
from poolbench.errors import PoolbenchError
from poolbench.http.api import MAX_MESSAGE
from poolbench.http.error_form import message_of, openai_error, shortened
from poolbench.http.openapi import Responses, errors
from poolbench.machine.memory import OUT_OF_MEMORY, hides_out_of_memory, is_out_of_memory
from poolbench.statuses import Code

_LOG = logging.getLogger("poolbench.http")
_MAX_ISSUES = 5
_MAX_NAME_CHARS = 100

#: Forms of a prompt, stop or reading, which the errors of pydantic name.
FORMS = ("text", "texts", "ids", "id_lists", "one", "several", "direction", "pooling")


def prompt_form(prompt: Any) -> str:
    """Return which of its four forms a prompt has; the first item decides, so that errors name the wrong one."""
    if not isinstance(prompt, list):
        return "text"
    if prompt and isinstance(prompt[0], (list, str)):
        return "texts" if isinstance(prompt[0], str) else "id_lists"
    return "ids"


class OpenAIErrorDetail(BaseModel):
    """An error as clients of the OpenAI API read it."""

    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None = Field(description="the field that is wrong")
    code: str


class OpenAIErrorBody(BaseModel):
    """The body of every error under `/v1`."""

    model_config = ConfigDict(extra="forbid")

    error: OpenAIErrorDetail


def openai_errors(*statuses: int, body: bool = True) -> Responses:
    """Return the error responses of a route under `/v1`: there a request that does not validate is a 400."""
    response_by_status = errors(*statuses, body=body, form=OpenAIErrorBody)
    return {status: response for status, response in response_by_status.items() if status != 422}


class OpenAIRoute(APIRoute):
    """A route that answers every error as the OpenAI API does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:
                status, body = describe(error)
                sent = error.headers if isinstance(error, HTTPException) else None
                return JSONResponse(body, status, sent or ERROR_HEADERS.get(status))

        return answer


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body of an error; a bug is logged, and only its type is returned."""
    if isinstance(error, RequestValidationError):
        return 400, _invalid(error.errors())
    if is_out_of_memory(error) or hides_out_of_memory(error):
        return 503, openai_error(503, Code.OUT_OF_MEMORY, OUT_OF_MEMORY)
    if isinstance(error, HTTPException):
        code = HTTP_CODES.get(error.status_code, Code.HTTP)
        return error.status_code, openai_error(error.status_code, code, str(error.detail))
    if isinstance(error, PoolbenchError):
        return error.http_status, openai_error(error.http_status, error.code, str(error)[:MAX_MESSAGE])
    _LOG.error("a request of the OpenAI API", exc_info=error)
    return 500, openai_error(500, Code.INTERNAL, f"{type(error).__name__}; the service's log has the details")


def _invalid(issues: Sequence[Any]) -> dict[str, Any]:
    # The field that an issue is about, without "body" and without the form of a prompt, stop or reading.
    paths = [".".join(str(part) for part in issue["loc"][1:] if part not in FORMS) for issue in issues[:_MAX_ISSUES]]
    issues_by_field = [(path[:_MAX_NAME_CHARS] or None, issue) for path, issue in zip(paths, issues, strict=False)]
    unknown = [name for name, issue in issues_by_field if name is not None and issue["type"] == "extra_forbidden"]
    if unknown:
        listed = ", ".join(map(shortened, unknown))
        return openai_error(400, "unknown_field", f"unknown or unsupported field {listed}", unknown[0])
    return openai_error(
        400, Code.INPUT, "; ".join(_line(name, issue) for name, issue in issues_by_field), issues_by_field[0][0]
    )


def _line(name: str | None, issue: Any) -> str:
    """Return what is wrong, and the received value if it is one."""
    message = message_of(issue).removeprefix("Value error, ")
    if name is None:
        return message
    # A message of ours quotes the value itself.
    quotes_value = isinstance(issue.get("ctx", {}).get("error"), ValueError)
    return f"{name}: {message}" if quotes_value else f"{name}: {message}, got {shortened(issue.get('input'))}"


METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class AnyPath(PathConvertor):
    """The rest of a path, line breaks included: Starlette's own convertor stops at the first."""

    regex = "(?s:.*)"


register_url_convertor("any_path", AnyPath())


def refusal(known: Sequence[BaseRoute]) -> Callable[[Request], Coroutine[Any, Any, NoReturn]]:
    """Return an endpoint for every request that no route of `known` takes."""
    routes = [route for route in known if isinstance(route, Route)]
    offered = ", ".join(sorted({route.path for route in routes}))

    async def refuse(request: Request) -> NoReturn:
        matches = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        methods = sorted({method for route in matches for method in route.methods or ()})
        if methods:
            allowed = ", ".join(methods)
            raise HTTPException(405, f"{request.method} is not offered here; send {allowed}", {"Allow": allowed})
        raise HTTPException(404, f"the OpenAI API of this service has no such path; known: {offered}")

    return refuse
