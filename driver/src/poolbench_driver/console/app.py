"""The console as a web application: each view is a page at its address, and JSON at the same address below `/api`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from poolbench.contracts import Row
from poolbench.errors import NotFoundError, PoolbenchError
from poolbench.http.tokens import Tokens
from poolbench.storage import Artifacts
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.board import BoardView
from poolbench_driver.console.guard import LOGIN, Guard, signed_in, start_of
from poolbench_driver.console.live import Live, letter_page, live_page, progress_page
from poolbench_driver.console.playground import PATH as PLAYGROUND
from poolbench_driver.console.playground import Playground, playground_page
from poolbench_driver.console.run_comparison import comparison_page
from poolbench_driver.console.run_list import runs_page
from poolbench_driver.contract.evidence import TOKENS, TextGroup
from poolbench_driver.contract.page import Answer, Page, Part, Span, Table
from poolbench_driver.evidence import ReadStore, entrant_of, evidence_of, store_reader, tokens_of
from poolbench_driver.pages.html import Surroundings, html_of, login_html, parts_html
from poolbench_driver.pages.text import json_of
from poolbench_driver.records import Run, Runs
from poolbench_driver.report.reading import read_page

#: Makes the page of a request.
View = Callable[[Request], Page]
#: Returns facts from the parameters of a path.
Act = Callable[..., dict[str, Any]]

_LINKS = (("", "Runs"), ("board", "Board"), ("compare", "Compare"), ("live", "Live"), ("playground", "Playground"))
_WITHOUT_CLUSTER = 3  # the first of these links need no cluster


@dataclass(frozen=True)
class Console:
    """The console: the sources that its views read, and its web application.

    Attributes:
        runs: The runs.
        services: The services of the cluster, for views that need a model. None without a cluster.
        tokens: The tokens of the cluster. None without a cluster.
    """

    runs: Runs
    services: Services | None = None
    tokens: Tokens | None = None

    def application(self, hosts: Collection[str] = ()) -> Starlette:
        """Return the ASGI application.

        The application accepts requests to `hosts`, to the names of this machine, and to IP addresses.
        """
        board = BoardView(self.runs)
        views: dict[str, View] = {
            "/": lambda request: runs_page(self.runs),
            "/board": lambda request: board.page(request.query_params),
            "/compare": lambda request: comparison_page(self.runs, request.query_params),
            "/runs/{run}/": lambda request: _run_page(self._run(request)),
            "/runs/{run}/cells/{cell}": self._cell_page,
            "/runs/{run}/entrants/{entrant:path}": self._entrant_page,
            f"/runs/{{run}}/{TOKENS}/{{cell}}/{{text:path}}": self._tokens_page,
        }
        routes: list[BaseRoute] = [Route(LOGIN, self._login, methods=["GET", "POST"])]
        for path, view in views.items():
            routes.append(Route(path, partial(self._answer, view)))
            routes.append(Route(f"/api{path}", partial(_json, view)))
        routes += self._live_routes()
        if self.services is not None:
            routes += [Route(PLAYGROUND, self._playground), *Playground(self.services).routes()]
        handlers = {PoolbenchError: self._refused, HTTPException: self._refused}
        guard = Middleware(Guard, tokens=self.tokens, hosts=hosts)
        return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)  # type: ignore[arg-type]

    def _live_routes(self) -> Iterator[Route]:
        """Yield the routes of the live view: pages that renew themselves, facts as JSON, and dead-letter actions."""
        live = Live(self.runs, self.services)
        subject = self.services.settings.http_address if self.services else "this machine"
        views: dict[str, tuple[Act, Callable[[dict[str, Any]], Page]]] = {
            "/live": (live.state, partial(live_page, subject=subject)),
            "/runs/{run}/progress": (live.progress, progress_page),
            "/dead-letters/{letter}": (live.letter, letter_page),
        }
        for path, (act, page) in views.items():
            yield Route(path, partial(self._answer, _page_from(act, page), scripts=["live.js"]))
            yield Route(f"/api{path}", partial(_facts, act))
        for verb, act in (("retry", live.retry), ("drop", live.drop)):
            yield Route(f"/api/dead-letters/{{letter}}/{verb}", partial(_facts, act), methods=["POST"])

    def _run(self, request: Request) -> Run:
        return self.runs.fetch(self.runs.find(request.path_params["run"]), renew=True)

    def _cell_page(self, request: Request) -> Page:
        run = self._run(request)
        cell_id = request.path_params["cell"]
        if self.services is not None:
            return _parts_page(run, evidence_of(run, cell_id, partial(_read_store, run.path)))
        page = _parts_page(run, evidence_of(run, cell_id))
        return page.with_cells(lambda cell: replace(cell, opens="") if cell.opens.startswith(TOKENS) else cell)

    def _tokens_page(self, request: Request) -> Page:
        run, (cell_id, text_id) = self._run(request), (request.path_params[name] for name in ("cell", "text"))
        if self.services is None:
            raise NotFoundError("the tokens of a text are explained by a cluster; open its console")
        artifacts = None if self.runs.records is None else Artifacts(self.runs.records.store)
        read_store = partial(_read_store, run.path)
        return _parts_page(run, tokens_of(run, cell_id, text_id, self.services, read_store, artifacts))

    def _entrant_page(self, request: Request) -> Page:
        run = self._run(request)
        return _parts_page(run, entrant_of(run, request.path_params["entrant"]))

    async def _answer(self, view: View, request: Request, scripts: Sequence[str] = ()) -> Response:
        page = await run_in_threadpool(view, request)
        if "part" in request.query_params:
            return HTMLResponse(parts_html(page.parts))
        if request.path_params and not request.url.path.endswith("/"):  # below the page of its run
            page = page.with_cells(lambda cell: replace(cell, opens=f"../{cell.opens}" if cell.opens else ""))
        around = self._around(request, *scripts)
        return HTMLResponse(await run_in_threadpool(html_of, page, around=around))

    def _around(self, request: Request, *scripts: str) -> Surroundings:
        start, links = start_of(request), _LINKS if self.services is not None else _LINKS[:_WITHOUT_CLUSTER]
        return Surroundings([(f"{start}{path}", name) for path, name in links], scripts=scripts)

    async def _playground(self, request: Request) -> Response:
        page, contents = playground_page()
        return HTMLResponse(html_of(page, around=self._around(request, "playground.js"), contents=contents))

    async def _login(self, request: Request) -> Response:
        """Show the page that asks for the token, or exchange a valid token for a cookie."""
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
        """Return an error as a response: JSON for scripts, and a page for readers."""
        status, code, message = _described(error)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/api/") or "part" in request.query_params:
            return JSONResponse({"error": {"code": code, "message": message}}, status)
        answer = Answer([Span("This cannot be shown.")], [message])
        page = Page("PoolBench", code, answer, Table.of([], []))
        return HTMLResponse(html_of(page, around=self._around(request)), status)


def _run_page(run: Run) -> Page:
    return _page_at(run.path, run.id, run.file("results.parquet").stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _page_at(path: Path, run_id: str, changed_ns: int) -> Page:
    """Return the report page of a run. The page is cached until the results of the run change."""
    return read_page(Run(path, run_id))


def _parts_page(run: Run, parts: Sequence[Part]) -> Page:
    """Return the parts about a figure or an entrant of a run as a page of their own."""
    answer = Answer([Span(parts[0].heading)], [parts[0].note] if parts[0].note else [])
    return Page("PoolBench", run.id, answer, Table.of([], []), parts=parts)


def _read_store(path: Path, group: TextGroup, ids: Collection[str]) -> list[Row]:
    """Return texts of a run from the object store.

    If this machine cannot read the store, return an empty list, so that the page shows ids instead.
    """
    try:
        return _store_reader(path)(group, ids)
    except PoolbenchError:  # not kept, because the store may answer the next time
        return []


@lru_cache(maxsize=4)
def _store_reader(path: Path) -> ReadStore:
    """Return a function that reads the texts of a run. The plan of the run is made once.

    Raise PoolbenchError if the object store or the model is not available.
    """
    from poolbench_driver.job import prepare_again

    job = prepare_again(Run(path))
    return store_reader(job.plan, job.session.artifacts)


def _described(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, HTTPException):
        return error.status_code, "http", "no view has this address" if error.status_code == 404 else str(error.detail)
    assert isinstance(error, PoolbenchError)
    return error.http_status, str(error.code), str(error)


def _page_from(act: Act, page: Callable[[dict[str, Any]], Page]) -> View:
    return lambda request: page(act(**request.path_params))


async def _facts(act: Act, request: Request) -> Response:
    return JSONResponse(await run_in_threadpool(act, **request.path_params))


async def _json(view: View, request: Request) -> Response:
    page = await run_in_threadpool(view, request)
    return Response(json_of(page), media_type="application/json")
