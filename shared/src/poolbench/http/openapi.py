"""Common parts of the services' OpenAPI documents: error bodies, their statuses, their headers, and the page."""

import re
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field

from poolbench.contracts.wire import DOCS_PATH, JSON_TYPE

Responses = dict[int | str, dict[str, Any]]
"""Responses by status, as FastAPI's routes take them."""

#: A body of bytes; its media type says the rest.
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

_COMMON = (401, 429, 500, 503, 504)
_WITH_BODY = (400, 413, 422)
_MEANINGS = {
    400: "The body is not JSON, or its values do not fit together.",
    401: "The bearer token is missing or wrong.",
    403: "The request asks for something of a sensitive concept.",
    404: "A name in the request is not known here.",
    409: "Another concept has the name.",
    413: "The body, or the work that it asks for, is too large.",
    415: "The verb does not read bodies of this content type.",
    422: "A field is missing, unknown, of the wrong type, or out of its bounds.",
    429: "Too many requests are waiting. Send the request again later.",
    500: "The service has a defect. Its log has the details.",
    503: "A part of the service is not available. Send the request again later.",
    504: "The deadline of the request has passed. Ask for less.",
}
#: An attribute of a docstring: its name and its text, of which later lines stand further to the right.
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
_TEXT = {"type": "string"}
_RETRY = {"description": "Seconds to wait before the next attempt.", "schema": {"type": "integer", "minimum": 0}}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "The scheme, `Bearer`.", "required": True, "schema": _TEXT}},
    429: {"Retry-After": _RETRY},
    503: {"Retry-After": _RETRY},
}


class ErrorDetail(BaseModel):
    """What is wrong, for programs and for people."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="What kind of error this is, such as `input` or `unknown_model`.")
    message: str = Field(description="What is wrong, what is allowed, and what to do.")


class ErrorBody(BaseModel):
    """The body of every error."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


class Health(BaseModel):
    """The state of a service; holders of the token also get what is loaded and how much was served."""

    model_config = ConfigDict(extra="allow")

    status: str = Field(description="`ok`, or why the service does not work.")


def errors(*statuses: int, body: bool = True, form: type[BaseModel] = ErrorBody) -> Responses:
    """Return the error responses of a verb: the common ones, those of a verb with a body, and `statuses`."""
    codes = sorted({*_COMMON, *(_WITH_BODY if body else ()), *statuses})
    return {
        status: {"model": form, "description": _MEANINGS[status]}
        | ({"headers": _HEADERS[status]} if status in _HEADERS else {})
        for status in codes
    }


def example(works: Any, **others: Any) -> dict[str, Any]:
    """Return the `openapi_extra` of a verb whose JSON body is documented with examples that work, by name."""
    examples = {name: {"value": value} for name, value in {"works": works, **others}.items()}
    content = {JSON_TYPE: {"examples": examples}}
    return {"requestBody": {"content": content}}


def describe_fields(schema: dict[str, Any]) -> None:
    """Give the fields of a schema the texts that its docstring has below `Attributes:`."""
    schema["description"], _, attributes = schema.get("description", "").partition("\n\nAttributes:\n")
    for name, meaning in _ATTRIBUTE.findall(attributes):
        if (field := schema.get("properties", {}).get(name)) is not None:
            field.setdefault("description", " ".join(meaning.split()))


class ServiceApi(FastAPI):
    """A FastAPI application whose document names our error bodies only, and whose page needs no internet.

    FastAPI's own page loads Swagger UI from a content delivery network.
    """

    def __init__(self, title: str, version: str) -> None:
        super().__init__(
            title=title, version=version, docs_url=None, redoc_url=None, swagger_ui_oauth2_redirect_url=None
        )
        # Links relative to the page work under every prefix, behind every proxy.
        folder, files = DOCS_PATH.removeprefix("/"), StaticFiles(packages=[("fastapi_offline", "static")])
        page = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=title,
            swagger_js_url=f"{folder}/swagger-ui-bundle.js",
            swagger_css_url=f"{folder}/swagger-ui.css",
            swagger_favicon_url=f"{folder}/favicon.png",
        )
        self.add_api_route(DOCS_PATH, lambda: page, response_class=HTMLResponse, include_in_schema=False)
        self.mount(DOCS_PATH, files)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the texts of fields and without FastAPI's error, which no service sends."""
        if self.openapi_schema is None:
            document = super().openapi()
            # FastAPI adds a 422 to every verb without one, such as those that answer 400 instead.
            for operations in document["paths"].values():
                for operation in operations.values():
                    if "HTTPValidationError" in str(operation["responses"].get("422")):
                        del operation["responses"]["422"]
            schemas = document.get("components", {}).get("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for schema in schemas.values():
                describe_fields(schema)
        return super().openapi()
