"""The command that shows services, queues, dead letters and runs: once, or again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import PoolbenchError
from poolbench.statuses import ServiceState
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType


Watch = Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")]
Interval = Annotated[float, typer.Option(min=0.2, help="Seconds between two looks of --watch.")]

_SERVICE_COLUMNS = ("service", "health", "waiting", "oldest_s", "not_understood", "dead_letters")
_RUN_COLUMNS = ("run", "state", "tasks_done", "tasks", "failures", "updated_at", "host")


def status(
    output: RunsFolder = Path("runs"), as_json: AsJson = False, watch: Watch = False, interval_s: Interval = 2.0
) -> int:
    """Show services, queues, dead letters, and the runs of the cluster and of --output."""
    from poolbench_driver.cluster.services import TokenRefusedError, open_services
    from poolbench_driver.records.overview import overview

    connected = open_services()
    look = partial(overview, connected, output)
    if watch:
        return _watch(look, as_json, interval_s)
    state = look()
    if as_json:
        print_data(state)
    else:
        _print(state)
    refused = [service for service in state["services"] if service["health"] == ServiceState.REFUSED]
    if refused:
        typer.echo(f"error: {TokenRefusedError(refused[0]['service'], connected.settings.token_from)}", err=True)
    return Exit.FAILURES if refused or "unknown" in state else Exit.DONE


def _watch(look: Callable[[], dict[str, Any]], as_json: bool, interval_s: float) -> int:
    """Show the status until Ctrl-C, which is the usual end and no failure."""
    try:
        if as_json:
            _repeat(look, interval_s, partial(print_data, in_one_line=True))
        elif sys.stdout.isatty():
            from rich.live import Live

            with Live(auto_refresh=False) as live:
                _repeat(look, interval_s, lambda found: live.update(_rendered(found), refresh=True))
        else:
            _repeat(look, interval_s, _print_dated)
    except KeyboardInterrupt:
        pass
    return Exit.DONE


def _repeat(look: Callable[[], dict[str, Any]], interval_s: float, show: Callable[[dict[str, Any]], object]) -> None:
    """Look and show; an outage of the store or the broker is shown and waited for."""
    while True:
        try:
            state = look()
        except PoolbenchError as error:
            if not error.retryable:
                raise
            state = {"error": str(error)}
        show(state)
        sys.stdout.flush()
        time.sleep(interval_s)


def _print_dated(state: dict[str, Any]) -> None:
    typer.echo(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z}")
    _print(state)


def _print(state: dict[str, Any]) -> None:
    from rich.console import Console

    # If the output is not a terminal, no cell is cut.
    Console(width=None if sys.stdout.isatty() else 200, soft_wrap=True).print(_rendered(state))


def _rendered(state: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if "error" in state:
        return Text(f"waiting: {state['error']}")
    lines = [f"dead letter of {letter['service']}: {letter['line']}" for letter in state["newest_dead_letters"]]
    parts: list[RenderableType] = [table_of(state["services"], _SERVICE_COLUMNS, "services"), *_texts(lines)]
    if state["runs"]:
        parts.append(table_of(state["runs"], _RUN_COLUMNS, "runs"))
    unknown = f"queues and runs are unknown: {state['unknown']}" if "unknown" in state else ""
    return Group(*parts, *_texts([state["damaged"], unknown]))


def _texts(lines: Sequence[str]) -> list[RenderableType]:
    from rich.text import Text

    return [Text(line) for line in lines if line]
