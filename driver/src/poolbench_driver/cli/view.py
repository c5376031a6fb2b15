"""`view`: the console of local runs, in a browser, without a cluster."""

from __future__ import annotations

import socket
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from poolbench.errors import ConfigError


def view(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run ids, 'latest', folders of runs, or a folder of several runs.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine; 0 for any free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
) -> None:
    """Show runs in the browser until Ctrl-C: pages, one board over all, two side by side; needs no cluster."""
    import uvicorn

    from poolbench_driver.console.app import Console
    from poolbench_driver.console.source import source_of

    application = Console(source_of(output, runs or ())).application()
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error.strerror}; --port 0 takes any free one") from None
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    typer.echo(address)
    typer.echo("Ctrl-C ends it", err=True)
    if not no_browser:
        webbrowser.open(address)
    uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=2)).run([listener])
