"""JSON bodies of errors: in our form, and in the OpenAI API's form below `/v1`; and how messages quote values."""

import json
from collections.abc import Mapping
from typing import Any

from poolbench.contracts.wire import ERROR_HEADERS, JSON_TYPE

_MAX_CHARS = 60


def json_headers(http_status: int, size: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a JSON response of `size` bytes, in ASGI form."""
    headers = {"content-type": JSON_TYPE, "content-length": str(size), **ERROR_HEADERS.get(http_status, {})}
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def error_json(path: str, http_status: int, code: str, message: str) -> bytes:
    """Return the body of an error response to a request for `path`, in the form of that API."""
    openai = "/v1/" in f"{path}/"
    body = openai_error(http_status, code, message) if openai else {"error": {"code": code, "message": message}}
    return json.dumps(body).encode()


def message_of(issue: Mapping[str, Any]) -> str:
    """Return what is wrong with a request, by one issue of a RequestValidationError.

    FastAPI passes the bytes of a body on whose type is not JSON, as `curl -d` sends it without a header.
    """
    if len(issue["loc"]) == 1 and isinstance(issue.get("input"), bytes):
        return "the body was not read as JSON; send the header `Content-Type: application/json`"
    return str(issue["msg"])


def openai_error(http_status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in the OpenAI API's form; the HTTP status decides its type, `param` names the wrong field.

    Lone surrogates in the message are escaped, because it may quote what a client sent.
    """
    message = message.encode("utf-8", "backslashreplace").decode()
    param = param and param.encode("utf-8", "backslashreplace").decode()
    kind = "invalid_request_error"
    if http_status == 429:
        kind = "rate_limit_error"
    elif http_status in (401, 403):
        kind = "authentication_error"
    elif http_status >= 500:
        kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shortened(value: Any) -> str:
    """Return a value in ASCII, cut to the length of a message; containers are shown by kind and size."""
    if isinstance(value, (list, tuple, dict, bytes)) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        value = value[: _MAX_CHARS + 1]
    text = ascii(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
