"""The openly licensed archives, packed or unpacked, and their documents with author, licence and domain."""

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poolbench.errors import CorpusError, UnknownNameError
from poolbench.settings import FolderSettings
from poolbench_corpora.reading import read_rows

ARCHIVES_VARIABLE = FolderSettings.variable("real_text")
ARCHIVE_NAMES = ("parsing", "passages", "probing")
MANIFEST = "MANIFEST.csv"


def archives_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of the archives, by default POOLBENCH_REAL_TEXT. Raise CorpusError if it holds none."""
    location = folder or FolderSettings.load().real_text
    if not location:
        raise CorpusError(
            f"no folder of real-text archives was named; set {ARCHIVES_VARIABLE} to the folder that holds "
            f"{', '.join(f'{name}.tar.xz' for name in ARCHIVE_NAMES)}"
        )
    path = Path(location).expanduser()
    if not any(_holds(path, name) for name in ARCHIVE_NAMES):
        raise CorpusError(
            f"{path} holds none of the real-text archives ({', '.join(ARCHIVE_NAMES)}, each a folder or a "
            f".tar.xz file); point {ARCHIVES_VARIABLE} to the folder that does"
        )
    return path


def has_archive(folder: str | Path | None, name: str) -> bool:
    """Return whether the folder, by default POOLBENCH_REAL_TEXT, holds an archive of `ARCHIVE_NAMES`."""
    try:
        return _holds(archives_folder(folder), name)
    except CorpusError:
        return False


def _holds(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or _packed(folder, name).is_file()


def read_archive(folder: str | Path, name: str) -> dict[str, bytes]:
    """Return every file of one archive of `ARCHIVE_NAMES`, by its path below the archive's root. Raise CorpusError
    without it.

    The unpacked folder is preferred if both exist. The result is kept in memory (about 95 MB for `passages`), because
    xz streams cannot be read at random.
    """
    return _read_archive(str(archives_folder(folder)), name)


def require_contents(folder: Path, archives: Sequence[str]) -> frozenset[str]:
    """Compare the files of archives with the manifest beside them, and return the sources that it names for them.

    Raise CorpusError for a file that is absent or has another hash.
    """
    sources = set[str]()
    for row in read_rows(folder / MANIFEST):
        archive, _, name = row.values["path"].partition("/")
        if archive not in archives:
            continue
        sources.add(row.values["source"])
        content = read_archive(folder, archive).get(name, b"")
        if hashlib.sha256(content).hexdigest() != row.values["sha256"]:
            raise CorpusError(f"{row.where}: {archive}/{name} is absent or has another hash; fetch the archives again")
    return frozenset(sources)


@cache
def _read_archive(folder: str, name: str) -> dict[str, bytes]:
    root, packed = Path(folder) / name, _packed(Path(folder), name)
    if root.is_dir():
        return _read_folder(root)
    if not packed.is_file():
        raise CorpusError(f"archive {packed.name} is missing from {folder}; put it there or unpack it as {root}")
    try:
        files: dict[str, bytes] = {}
        with tarfile.open(packed, "r:xz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    files[member.name.removeprefix("./").partition("/")[2]] = stream.read()
        return dict(sorted(files.items()))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise CorpusError(f"archive {packed} cannot be read ({error}); fetch it again") from error


def _packed(folder: Path, name: str) -> Path:
    return folder / f"{name}.tar.xz"


def _read_folder(root: Path) -> dict[str, bytes]:
    # If an archive is unpacked into a folder of the same name, the name occurs twice.
    root = root / root.name if (root / root.name).is_dir() else root
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


Files = Mapping[str, bytes]
Reader = Callable[[Files], Iterator["Entry"]]


@dataclass(frozen=True)
class Entry:
    """One text as a reader yields it.

    Attributes:
        document: Part of the document id after the source; texts of one author, article or regulation
            share it (or its first component), so that they share a split.
        text: Plain text, paragraphs separated by a blank line.
        labels: The source's own labels of the text, such as `(("sentiment", "pos"),)`.
        domain: Domain of the text, if the source has more than one.
    """

    document: str
    text: str
    labels: tuple[tuple[str, str], ...] = ()
    domain: str = ""


@dataclass(frozen=True)
class Document:
    """One text of a source, with what is needed to place, split and credit it."""

    doc_id: str
    source: str
    licence: str
    domain: str
    text: str
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, name: str) -> str:
        """Return the source's own label of that name, or the empty string."""
        return dict(self.labels).get(name, "")


@dataclass(frozen=True)
class Source:
    """A registered source of real text."""

    name: str  # source part of its document ids
    archive: str  # archive that holds it
    prefix: str  # folder of its files in the archive
    domain: str  # kind of writing
    licence: str  # as declared by the publisher
    origin: str  # repository and commit, or package and version
    permissive: bool  # may train a model that is released under a permissive licence
    reader: Reader  # from files below the prefix (paths relative to it) to entries


SOURCES: dict[str, Source] = {}


def register(source: Source) -> Source:
    """Add a source to the registry. Raise CorpusError if the name is taken."""
    if source.name in SOURCES:
        raise CorpusError(f"source {source.name!r} is registered twice; give the second another name")
    SOURCES[source.name] = source
    return source


def get_source(name: str) -> Source:
    """Return the registered source of that name. Raise UnknownNameError with the nearest names."""
    if name not in SOURCES:
        raise UnknownNameError("real-text source", name, SOURCES)
    return SOURCES[name]


def require_sources(folder: Path) -> None:
    """Require the archive of passages that the readers and rules were written for.

    Raise CorpusError for a file that is absent or has another hash, and for a source of another commit or version.
    """
    present = require_contents(folder, ["passages"])
    for source in SOURCES.values():
        for revision in _REVISION.findall(source.origin):
            if not any(one.startswith(revision) for one in present):
                raise CorpusError(
                    f"source {source.name!r} is of {revision}, which {folder / MANIFEST} does not have: point "
                    f"{ARCHIVES_VARIABLE} to the archives of this revision"
                )


@cache
def _require_sources_once(folder: str) -> None:
    require_sources(Path(folder))


#: A repository with its commit, or a package with its version.
_REVISION = re.compile(r"[\w./-]+@\w+|^Debian .+")


def documents_from(files: Files, source: Source) -> Iterator[Document]:
    """Yield the documents of one source from the files below its prefix, without empty and repeated texts."""
    seen: set[str] = set()
    for entry in source.reader(files):
        text = entry.text.strip()
        if not text or text in seen:
            continue
        seen.add(text)
        yield Document(
            doc_id=f"{source.name}/{entry.document}",
            source=source.name,
            licence=source.licence,
            domain=entry.domain or source.domain,
            text=text,
            labels=entry.labels,
        )


def read_documents(name: str, archives: str | Path | None = None) -> tuple[Document, ...]:
    """Return all documents of one source in a fixed order.

    Raise UnknownNameError, or CorpusError for archives that are absent or have other contents than the readers expect.
    """
    return _read_documents(name, str(archives_folder(archives)))


@cache
def _read_documents(name: str, folder: str) -> tuple[Document, ...]:
    source = get_source(name)
    _require_sources_once(folder)
    prefix = f"{source.prefix}/"
    files = read_archive(folder, source.archive)
    below = {path.removeprefix(prefix): content for path, content in files.items() if path.startswith(prefix)}
    if not below:
        raise CorpusError(f"archive {source.archive!r} in {folder} holds nothing below {prefix!r}; fetch it again")
    return tuple(documents_from(below, source))
