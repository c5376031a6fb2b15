"""login and logout: the cluster that the commands of this user reach over HTTP."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from poolbench.errors import ConfigError, shown


def login(
    url: Annotated[str, typer.Argument(help="Address of the services, such as https://poolbench.example.org.")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; without it, the token is asked for, or read from a pipe.")
    ] = None,
) -> None:
    """Keep the address and the token of a cluster, after a check, so that other commands reach it over HTTP."""
    from poolbench.settings import ClusterSettings
    from poolbench.settings.access import Login, keep_login
    from poolbench_driver.cluster.services import Services

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ConfigError(
            f"URL {shown(url)} is not the address of a cluster: give http:// or https://, a host, and perhaps a port"
        )
    address, token = url.rstrip("/"), _token(token_file)
    cluster = ClusterSettings("", "", address, token, http_from="the command line", token_from="the token given")
    version = Services(cluster).health("pooler").get("replica", {}).get("version", "unknown")
    path = keep_login(Login(address, token))
    typer.echo(f"{address} answers, version {version}; address and token are in {path}")
    if (used := ClusterSettings.load(http_only=True)).http_address != address:
        typer.echo(f"note: here, commands reach {used.http_address}, which {used.http_from} names", err=True)


def logout() -> None:
    """Remove the address and the token that `login` kept."""
    from poolbench.settings.access import drop_login, login_path

    typer.echo(f"{login_path()} is removed" if drop_login() else "there was no login")


def _token(file: Path | None) -> str:
    """Return the token from a file, a pipe or the terminal, where it is not shown."""
    if file is not None:
        token = file.read_text("utf-8")
    elif sys.stdin.isatty():
        token = str(typer.prompt("token", hide_input=True, err=True))
    else:
        token = sys.stdin.readline()
    if not (token := token.strip()):
        raise ConfigError("the token is empty: give the token of the cluster, or --token-file FILE")
    if not token.isascii() or not token.isprintable():
        raise ConfigError("the token holds characters that no header can carry: give the token of the cluster alone")
    return token
