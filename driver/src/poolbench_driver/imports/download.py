"""Fetch a file that an import names by its address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import httpx

from poolbench.errors import CorpusError, shown

MAX_BYTES = 4_000_000_000
"""Most bytes of a download, as they arrive and not as the server declares them."""
_TIMEOUT_S = 30.0
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_address(source: str) -> bool:
    """Return whether a source is the address of a file, not a path; raise CorpusError for one that is not HTTP."""
    scheme, separator, _ = source.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise CorpusError(f"{shown(source)} is neither a path nor an address that begins with https:// or http://")
    return bool(separator)


@contextmanager
def downloaded(address: str, folder: Path, limit: int = MAX_BYTES) -> Iterator[Path]:
    """Give the file at an address, in a temporary folder inside `folder`; how far it is stands on stderr.

    Raises:
        CorpusError: There is no connection, the server answers with an error, or the file has more than `limit` bytes.
    """
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise CorpusError(f"{shown(address)} is not an address: {error}") from None
    name = url.path.rpartition("/")[2]
    where = str(url.copy_with(username=None, password=None, query=None, fragment=None))
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".import-") as scratch:
        file = Path(scratch, name if _FILE.fullmatch(name) else "download")
        try:
            with (
                httpx.stream("GET", url, follow_redirects=True, timeout=_TIMEOUT_S) as answer,
                file.open("wb") as target,
            ):
                answer.raise_for_status()
                _save(answer, target, where, limit)
        except httpx.HTTPStatusError as error:
            raise CorpusError(f"{where}: the server answers {error.response.status_code}; check the address") from None
        except httpx.HTTPError as error:
            message = str(error) or type(error).__name__
            raise CorpusError(
                f"{where} cannot be fetched ({message}): connect to a network that reaches it, or fetch it elsewhere "
                "and name the file"
            ) from None
        yield file


def _save(answer: httpx.Response, target: IO[bytes], where: str, limit: int) -> None:
    from rich.console import Console
    from rich.progress import Progress

    console, declared = Console(stderr=True), answer.headers.get("content-length", "")
    total, size = int(declared) if declared.isdecimal() else None, 0
    amount = "" if total is None else f", {total / 1e6:.1f} MB"
    console.print(f"fetching {where}{amount}", soft_wrap=True, highlight=False, markup=False)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("fetching", total=total)
        for part in answer.iter_bytes(1 << 20):
            size += len(part)
            if size > limit:
                raise CorpusError(f"{where} has more than {limit:,} bytes; fetch it yourself and name the file")
            target.write(part)
            progress.update(task, completed=size)
