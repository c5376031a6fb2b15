"""Import published scorers, one request per concept, from files or addresses."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import httpx

from poolbench.concepts import CONCEPTS, withheld
from poolbench.errors import CorpusError, InputError, shown
from poolbench_driver.cluster.services import ServiceError, Services

MAX_BYTES = 4_000_000_000
"""Most bytes of a download, as they arrive and not as the server declares them."""
_TIMEOUT_S = 30.0
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_address(source: str) -> bool:
    """Return whether a source is the address of a file, not a path. Raise CorpusError if an address is not HTTP."""
    scheme, separator, _ = source.partition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise CorpusError(f"{shown(source)} is neither a path nor an address that begins with https:// or http://")
    return bool(separator)


@contextmanager
def downloaded(address: str, folder: Path, limit: int = MAX_BYTES) -> Iterator[Path]:
    """Download a file into a temporary folder inside `folder` and yield its path. Progress is shown on stderr.

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


LABEL_NEEDED = "label_needed"

#: From the service's question to the label that means the concept.
Ask = Callable[[str], str]


@dataclass(frozen=True)
class Imported:
    """The result of importing one concept's scorer. `error` says why the import failed, if it did."""

    concept: str
    answer: dict[str, Any]
    error: str | None = None


def concepts_at(source: str, concepts: str | None) -> list[str]:
    """Return the named concepts, or else concepts with a subfolder in a local folder. Raise InputError without any."""
    if concepts is not None:
        return [CONCEPTS.get(name.strip()).id for name in concepts.split(",") if name.strip()]
    concept_ids = [one.id for one in CONCEPTS.all() if (Path(source) / one.id / "config.json").is_file()]
    if not concept_ids:
        raise InputError(f"{source} is not a folder with one folder per concept; name the concepts with --concepts a,b")
    sensitive = withheld(concept_ids)
    return [name for name in concept_ids if name not in sensitive]


def import_scorers(
    services: Services, concepts: Sequence[str], settings: dict[str, Any], ask: Ask | None
) -> Iterator[Imported]:
    """Import the scorers of some concepts in sequence. A failure is reported, and does not stop the other imports.

    Args:
        settings: Fields of the service's request besides the concept.
        ask: Asks a person for the label that means a concept, if the service needs it. If None, an import that needs
            the label fails.
    """
    for concept in concepts:
        try:
            yield Imported(concept, _import(services, {**settings, "concept": concept}, ask))
        except ServiceError as error:
            yield Imported(concept, {}, str(error))


def _import(services: Services, body: dict[str, Any], ask: Ask | None) -> dict[str, Any]:
    try:
        return services.post("scorer", "import", body)
    except ServiceError as error:
        if error.code != LABEL_NEEDED or ask is None:
            raise
        return services.post("scorer", "import", {**body, "positive_label": ask(str(error))})
