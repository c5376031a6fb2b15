"""The console as a web application: each view is a page at its address, and JSON at the same address below `/api`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from poolbench.errors import PoolbenchError
from poolbench.http.tokens import Tokens
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.board import BoardView
from poolbench_driver.console.compared import comparison_page
from poolbench_driver.console.guard import LOGIN, Guard, signed_in
from poolbench_driver.console.listed import runs_page
from poolbench_driver.console.playground import PATH as PLAYGROUND
from poolbench_driver.console.playground import Playground, playground_page
from poolbench_driver.console.source import RunSource
from poolbench_driver.contract.page import Answer, Page, Span, Table
from poolbench_driver.pages.html import Surroundings, html_of, login_html, parts_html
from poolbench_driver.pages.text import json_of
from poolbench_driver.records import RunFolder
from poolbench_driver.report import page_of

#: Makes the page of a request.
View = Callable[[Request], Page]

_LINKS = (("", "Runs"), ("board", "Board"), ("compare", "Compare"))


@dataclass(frozen=True)
class Console:
    """What the views of the console read.

    Attributes:
        source: The runs.
        services: The services of a cluster, for what is asked of a model; None without a cluster.
        tokens: The tokens of the cluster; None without a cluster.
    """

    source: RunSource
    services: Services | None = None
    tokens: Tokens | None = None

    def application(self, hosts: Collection[str] = ()) -> Starlette:
        """Return the ASGI application, which answers under `hosts`, the names of this machine, and addresses."""
        board = BoardView(self.source)
        views: dict[str, View] = {
            "/": lambda request: runs_page(self.source),
            "/board": lambda request: board.page(request.query_params),
            "/compare": lambda request: comparison_page(self.source, request.query_params),
            "/runs/{run}/": lambda request: _run_page(self.source.folder(request.path_params["run"])),
        }
        routes: list[BaseRoute] = [Route(LOGIN, self._login, methods=["GET", "POST"])]
        for path, view in views.items():
            routes.append(Route(path, partial(self._answer, view)))
            routes.append(Route(f"/api{path}", partial(_json, view)))
        if self.services is not None:
            routes += [Route(PLAYGROUND, self._playground), *Playground(self.services).routes()]
        handlers = {PoolbenchError: self._refused, HTTPException: self._refused}
        guard = Middleware(Guard, tokens=self.tokens, hosts=hosts)
        return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)  # type: ignore[arg-type]

    async def _answer(self, view: View, request: Request) -> Response:
        page = await run_in_threadpool(view, request)
        if "part" in request.query_params:
            return HTMLResponse(parts_html(page.parts))
        return HTMLResponse(html_of(page, around=self._around(request)))

    def _around(self, request: Request, *scripts: str) -> Surroundings:
        root = request.scope.get("root_path", "")
        links = [*_LINKS, *([(PLAYGROUND[1:], "Playground")] if self.services is not None else [])]
        return Surroundings([(f"{root}/{path}", name) for path, name in links], scripts=scripts)

    async def _playground(self, request: Request) -> Response:
        page, contents = playground_page()
        return HTMLResponse(html_of(page, around=self._around(request, "playground.js"), contents=contents))

    async def _login(self, request: Request) -> Response:
        """Ask for the token, and exchange it for a cookie."""
        if self.tokens is None:
            return RedirectResponse("./", 303)
        said = ""
        if request.method == "POST":
            body = (await request.body())[:10_000].decode("utf-8", "replace")
            token = parse_qs(body).get("token", [""])[0].strip()
            if (response := signed_in(request, self.tokens, token)) is not None:
                return response
            said = "This is not the token of this cluster."
        return HTMLResponse(login_html(said), 401 if said else 200)

    async def _refused(self, request: Request, error: Exception) -> Response:
        """Answer with what went wrong, as JSON for scripts and as a page for readers."""
        status, code, message = _described(error)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/api/") or "part" in request.query_params:
            return JSONResponse({"error": {"code": code, "message": message}}, status)
        answer = Answer([Span("This cannot be shown.")], [message])
        page = Page("PoolBench", code, answer, Table.of([], []))
        return HTMLResponse(html_of(page, around=self._around(request)), status)


def _run_page(folder: RunFolder) -> Page:
    return _page_at(folder.path, folder.file("results.parquet").stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _page_at(path: Path, changed_ns: int) -> Page:
    """Return the page of a run, which is made once."""
    return page_of(RunFolder(path))


def _described(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, HTTPException):
        return error.status_code, "http", "there is no such view" if error.status_code == 404 else str(error.detail)
    assert isinstance(error, PoolbenchError)
    return error.http_status, str(error.code), str(error)


async def _json(view: View, request: Request) -> Response:
    page = await run_in_threadpool(view, request)
    return Response(json_of(page), media_type="application/json")
