"""Minimal pairs of the archives: acceptable and unacceptable sentences, one set per file."""

import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from recipes.passages.documents import archives_folder, read_archive

from poolbench.errors import CorpusError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, whole

ARCHIVE = "probing"
BLIMP, ZORRO = "blimp/BLiMP.zip", "zorro/"
_LABELS = ("acceptable", "unacceptable")
Pair = tuple[str, str]  # acceptable, unacceptable


def blimp_members(archives: Path | None) -> list[str]:
    """Return the paradigms that the archive holds."""
    return list(_blimp(str(archives_folder(archives))))


def zorro_members(archives: Path | None) -> list[str]:
    """Return the paradigms that the archive holds."""
    return list(_zorro(str(archives_folder(archives))))


def read_blimp(definition: ProbingSet, archives: Path | None, *, member: str) -> Iterator[Sample | Note]:
    """Yield both sentences of each pair of one paradigm."""
    yield from _samples(blimp_pairs(archives, member), member)


def blimp_pairs(archives: Path | None, member: str) -> Iterator[Pair]:
    """Yield the pairs of one paradigm. Raise CorpusError without the archive, or if it lacks the paradigm."""
    for line in _member(_blimp(str(archives_folder(archives))), member).decode("utf-8").splitlines():
        row = json.loads(line)
        yield row["sentence_good"], row["sentence_bad"]


def read_zorro(definition: ProbingSet, archives: Path | None, *, member: str) -> Iterator[Sample | Note]:
    """Yield both sentences of each pair of one paradigm; its file has the unacceptable one first."""
    lines = _member(_zorro(str(archives_folder(archives))), member).decode("utf-8").splitlines()
    yield from _samples(zip(lines[1::2], lines[::2], strict=True), member)


def _samples(pairs: Iterable[Pair], member: str) -> Iterator[Sample]:
    for number, pair in enumerate(pairs):
        for label, text in zip(_LABELS, pair, strict=True):
            where = f"{member}, pair {number + 1}"
            yield Sample(f"{number:04d}-{label}", whole(text), label=label, group=f"{number:04d}", where=where)


def _member(files: dict[str, bytes], member: str) -> bytes:
    if member not in files:
        raise CorpusError(f"the archive {ARCHIVE!r} holds no paradigm {member!r}")
    return files[member]


@cache
def _blimp(folder: str) -> dict[str, bytes]:
    content = read_archive(folder, ARCHIVE).get(BLIMP, b"")
    if not content:
        return {}
    with zipfile.ZipFile(io.BytesIO(content)) as inner:
        names = [PurePosixPath(name) for name in sorted(inner.namelist()) if not name.startswith("__")]
        return {name.stem: inner.read(str(name)) for name in names if name.suffix == ".jsonl"}


@cache
def _zorro(folder: str) -> dict[str, bytes]:
    files = read_archive(folder, ARCHIVE).items()
    return {
        PurePosixPath(name).stem: content for name, content in files if name.startswith(ZORRO) and name.endswith(".txt")
    }
