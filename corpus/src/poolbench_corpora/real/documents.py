"""Documents of the real-text sources, with author, licence and domain."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poolbench.errors import CorpusError, UnknownNameError
from poolbench_corpora.real.archives import archives_folder, read_archive

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
    """Return all documents of one source in a fixed order. Raise UnknownNameError, or CorpusError without archives."""
    return _read_documents(name, str(archives_folder(archives)))


@cache
def _read_documents(name: str, folder: str) -> tuple[Document, ...]:
    source = get_source(name)
    prefix = f"{source.prefix}/"
    files = read_archive(folder, source.archive)
    below = {path.removeprefix(prefix): content for path, content in files.items() if path.startswith(prefix)}
    if not below:
        raise CorpusError(f"archive {source.archive!r} in {folder} holds nothing below {prefix!r}; fetch it again")
    return tuple(documents_from(below, source))
