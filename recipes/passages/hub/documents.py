"""Read the records of datasets, from the hub or a folder with copies, and turn them into documents."""

import hashlib
import html
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from recipes.passages.documents import Document
from recipes.passages.hub.catalog import Dataset
from recipes.passages.yields import Yield

from poolbench.errors import ConfigError, CorpusError
from poolbench_corpora.own.files import MARKUP
from poolbench_corpora.own.labelled import files_of
from poolbench_corpora.partition import HUB
from poolbench_corpora.reading import MAX_CHARACTERS, is_missing, records

T = TypeVar("T")
#: A record with where it is: file and line, or dataset and row.
Record = tuple[str, Mapping[str, Any]]
Reader = Callable[[Dataset, int], Iterator[Record]]

LOCAL = "local:"
BUFFER = 1000
"""Records among which the next one is drawn; bounds the memory of the sampling."""
_INSTEAD = "--source local:PATH reads a copy of it, --without {id} leaves it out"


def reader_of(source: str) -> Reader:
    """Return the reader of `hf` or `local:PATH`. Raise CorpusError without the folder, ConfigError without `datasets`.

    A reader takes a dataset and a seed. Other seeds give other orders, from shuffled files and a buffer.
    """
    if source.startswith(LOCAL):
        folder = Path(source.removeprefix(LOCAL)).expanduser()
        if not folder.is_dir():
            raise CorpusError(f"{folder}: no such folder; give one with copies of datasets, as local:PATH")
        return lambda dataset, seed: _local(folder, dataset, seed)
    try:
        import datasets  # noqa: F401  (is it there?)
    except ImportError:
        raise ConfigError(
            "--source hf needs the library `datasets`: pip install datasets, or use --source local:PATH"
        ) from None
    return _online


def _local(folder: Path, dataset: Dataset, seed: int) -> Iterator[Record]:
    """Yield the records of a copy: files as on the hub, or a folder that `datasets` saved."""
    place = _copy_of(folder, dataset)
    files = [path for path, split in files_of(place) if split in ("", *dataset.splits)]
    if not files:
        raise CorpusError(f"{place} has no file of the split {' or '.join(dataset.splits)} of {dataset.name}")
    rng = Random(f"{dataset.name}:{seed}")
    rng.shuffle(files)
    return drawn((record for path in files for record in records(path)), rng)


def _copy_of(folder: Path, dataset: Dataset) -> Path:
    owner, _, name = dataset.id.rpartition("/")
    places = [folder / dataset.id, folder / f"{owner}__{name}", folder / name]
    place = next((path for path in places if path.is_dir()), None)
    if place is not None and dataset.config:
        place = next(
            (path for path in (place / dataset.config, place / "data" / dataset.config) if path.is_dir()), None
        )
    if place is None:
        subfolder = "/".join(filter(None, (dataset.id, dataset.config)))
        raise CorpusError(f"{folder} has no copy of {dataset.name}: put it in {subfolder}, or --without {dataset.id}")
    return place


def drawn(items: Iterator[T], rng: Random, size: int = BUFFER) -> Iterator[T]:
    """Yield all items in a random order: each is drawn from the next `size`."""
    buffer: list[T] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = rng.randrange(size)
        yield buffer[place]
        buffer[place] = item
    rng.shuffle(buffer)
    yield from buffer


def _online(dataset: Dataset, seed: int) -> Iterator[Record]:
    """Yield the records of a dataset of the hub, streamed: nothing is stored."""
    number = 0
    try:
        from datasets import load_dataset

        for split in dataset.splits:
            stream = (
                load_dataset("csv", data_files=list(dataset.files), split="train", streaming=True)
                if dataset.files
                else load_dataset(dataset.id, dataset.config, split=split, revision=dataset.revision, streaming=True)
            )
            for values in stream.shuffle(seed=seed, buffer_size=BUFFER):
                number += 1
                yield f"{dataset.name}, {split}, record {number}", values
    except Exception as error:  # the library raises what each of its many layers raises
        raise CorpusError(_why(dataset, error, number)) from error


def _why(dataset: Dataset, error: Exception, number: int) -> str:
    """Return a line that says what is wrong with a dataset, and which flags replace it."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    instead = _INSTEAD.format(id=dataset.id)
    if "gated" in f"{type(error).__name__} {error}".lower():
        return f"{dataset.name} is gated: accept its terms on the hub and set HF_TOKEN; or {instead}"
    if number:
        return f"{dataset.name}: the download broke off after {number} records ({reason}): run it again; or {instead}"
    return f"{dataset.name} cannot be read ({type(error).__name__}: {reason}); {instead}"


UNKNOWN_LICENCE = "unknown"
_BREAK = re.compile(r"<br\s*/?>", re.I)
#: Replacement and control characters, lone surrogates, and UTF-8 that was read as Latin-1.
_WRONG_ENCODING = re.compile("[\ufffd\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]|\u00e2\u20ac|\u00c3[\u0080-\u00bf]")


def documents_of(
    name: str, dataset: Dataset, domain: str, columns: tuple[str, ...], records: Iterator[Record], found: Yield
) -> Iterator[Document]:
    """Yield a document per record that has usable text; count the others.

    The id of a document is a hash of its text: the same text is in the same split however it is read.

    Args:
        columns: Columns with labels, which the documents keep; `a|b` is the first of two that there is.

    Raises:
        CorpusError: A record lacks the column of the text or of a label.
    """
    for where, values in records:
        found.read(dataset.name)
        text = clean(_text(values, dataset, where))
        if rule := _wrong(text):
            found.drop(rule, text)
            continue
        labels = tuple((column, str(_column(values, column.split("|"), where))) for column in columns)
        digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
        licence = dataset.licence or UNKNOWN_LICENCE
        yield Document(f"{HUB}{name}/{digest}", dataset.id, licence, domain, text, labels)


def clean(text: str) -> str:
    """Return a text with line ends of one kind, without entities and line breaks of HTML."""
    text = _BREAK.sub("\n", html.unescape(text) if "&" in text else text)
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _wrong(text: str) -> str | None:
    """Return the rule that drops a text, None if none does."""
    if not text:
        return "empty"
    if len(text) > MAX_CHARACTERS:
        return "long_document"
    if _WRONG_ENCODING.search(text):
        return "encoding"
    return "markup" if MARKUP.search(text) else None


def _text(values: Mapping[str, Any], dataset: Dataset, where: str) -> str:
    text = _joined(_column(values, dataset.text, where))
    if dataset.title is None:
        return text
    title = _joined(_column(values, (dataset.title,), where))
    return f"{title}\n\n{text}" if title else text


def _joined(value: Any) -> str:
    """Return a text, or parts of a text, as one; the empty string where it is missing or no text."""
    parts = value if isinstance(value, list) else [value]
    return "\n\n".join(part for part in parts if isinstance(part, str) and not is_missing(part))


def _column(values: Mapping[str, Any], names: tuple[str, ...] | list[str], where: str) -> Any:
    """Return the first column that there is; a dot goes into a nested record."""
    for name in names:
        inside: Any = values
        for part in name.split("."):
            inside = inside.get(part, _MISSING) if isinstance(inside, Mapping) else _MISSING
        if inside is not _MISSING:
            return inside
    here = ", ".join(map(str, values)) or "nothing"
    raise CorpusError(f"{where}: no column {' or '.join(map(repr, names))}; there are {here}")


_MISSING = object()
