"""Answers of the API to paths that it does not have, and to methods that a path does not take."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn

from fastapi import Request
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class AnyPath(PathConvertor):
    """The rest of a path, line breaks included: Starlette's own convertor stops at the first."""

    regex = "(?s:.*)"


register_url_convertor("any_path", AnyPath())


def refusal(known: Sequence[BaseRoute]) -> Callable[[Request], Coroutine[Any, Any, NoReturn]]:
    """An endpoint for every request that no route of ``known`` takes."""
    routes = [route for route in known if isinstance(route, Route)]
    offered = ", ".join(sorted({route.path for route in routes}))

    async def refuse(request: Request) -> NoReturn:
        found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        methods = sorted({method for route in found for method in route.methods or ()})
        if methods:
            allowed = ", ".join(methods)
            raise HTTPException(405, f"{request.method} is not offered here; send {allowed}", {"Allow": allowed})
        raise HTTPException(404, f"the completions API has no such path; known: {offered}")

    return refuse
