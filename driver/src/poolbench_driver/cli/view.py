"""`view`: the console of local runs, in a browser, without a cluster; `open`: the page of one run."""

from __future__ import annotations

import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.errors import ConfigError
from poolbench.settings import ConsoleSettings
from poolbench_driver.cli.runs import RunName, RunsFolder

if TYPE_CHECKING:
    from poolbench_driver.console.app import Console


def view(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run ids, 'latest', folders of runs, or a folder of several runs.")
    ] = None,
    output: RunsFolder = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine; 0 for any free one.")] = 0,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Show the runs of a cluster too, and ask its services; needs its token.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
) -> None:
    """Show runs in the browser until Ctrl-C: pages, one board over all, two side by side; needs no cluster."""
    import uvicorn

    from poolbench_driver.console.app import Console
    from poolbench_driver.records import local_runs

    console = _of_cluster(output) if cluster else Console(local_runs(output, runs or ()))
    application = console.application(ConsoleSettings.load().names)
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # a browser that comes before uvicorn accepts waits, and is not refused
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; --port 0 takes any free one") from None
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    typer.echo(address)
    typer.echo("Ctrl-C ends it", err=True)
    if not no_browser:
        webbrowser.open(address)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=2)).run([listener])


def open_page(name: RunName = "latest", output: RunsFolder = Path("runs")) -> None:
    """Open the page of a run in the browser; without a browser, print where it is."""
    from poolbench_driver.records import find_run
    from poolbench_driver.report.making import write_report

    folder = find_run(output, name)
    page = folder.file("report") / "index.html"
    if not page.is_file():
        page = write_report(folder)
    if not (sys.stdout.isatty() and webbrowser.open(page.resolve().as_uri())):
        typer.echo(str(page))


def _of_cluster(output: Path) -> Console:
    """Return the console of the cluster, as `/console` is where the cluster serves it."""
    from poolbench.http.tokens import Tokens
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.console.app import Console
    from poolbench_driver.records import open_runs

    services = open_services()
    return Console(open_runs(output, services.settings), services, Tokens.fixed(services.settings.token))
