"""Import probing sets that were downloaded elsewhere: those of the public suite, and the tasks of SentEval."""

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from poolbench.config.base import read_yaml
from poolbench.errors import ConfigError, CorpusError, PoolbenchError, shown
from poolbench_corpora.probing.catalog import suite_sets
from poolbench_corpora.probing.data import probing_data
from poolbench_corpora.probing.readers import samples_of
from poolbench_corpora.probing.readers.tables import literal_in, read_list
from poolbench_corpora.probing.samples import Input, Note, ProbingSet
from poolbench_corpora.reading import ending, records, stem_of

SAMPLES, CONFIG = "samples.csv", "config-none.yaml"
MAX_FILE = 2_000_000_000
"""Most bytes of one file of a zip archive, as it is written and not as the archive declares it."""
MAX_TOTAL = 20_000_000_000
MAX_ENTRIES = 20_000
_UNKNOWN = "unknown"
_COPIED = 1 << 20  # bytes at once
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass
class Imported:
    """The ids of the sets that an import wrote, and the reasons why others were left out."""

    sets: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def import_suite(source: Path, target: Path, licence: str = "as the publisher of each set declares") -> Imported:
    """Write the sets of the public suite's download as a folder of definitions; sets that cannot be read become notes.

    Args:
        source: A folder, or zip archive, with one `samples.csv` and one `config-none.yaml` per set.
        target: Receives `<set>.yaml` and `<set>/samples.csv`.
        licence: Licence of the definitions.

    Raises:
        CorpusError: The source has no set, or is not a zip archive.
    """
    done = Imported()
    with _unpacked(source, target, done.notes, SAMPLES, CONFIG) as folder:
        paths = [path for path in sorted(folder.rglob(SAMPLES)) if path.parent != folder]
        if not paths:
            raise CorpusError(f"{source} holds no folder of a set (with {SAMPLES} and {CONFIG})")
        for path in paths:
            _import_one(path, target, licence, done)
    return done


def import_senteval(source: Path, target: Path, licence: str = "BSD-3-Clause") -> Imported:
    """Write tasks of SentEval as a folder of definitions: a `.txt` file, a folder or zip archive of them.

    Raise as above.
    """
    done = Imported()
    if ending(source.name).startswith(".txt"):
        files = [source] if source.is_file() else []
        _import_tasks(files, source, target, licence, done)
        return done
    with _unpacked(source, target, done.notes, "*.txt", "*.txt.gz") as folder:
        inside = folder.glob("*") if folder == source else folder.rglob("*")
        files = sorted(path for path in inside if ending(path.name).startswith(".txt"))
        _import_tasks(files, source, target, licence, done)
    return done


def _import_tasks(found: Sequence[Path], source: Path, target: Path, licence: str, done: Imported) -> None:
    if not found:
        raise CorpusError(f"{source} holds no task of SentEval (a .txt file with split, label and text)")
    for path in found:
        name = f"senteval-{stem_of(path)}"
        if not _NAME.fullmatch(name):
            done.notes.append(Note(str(path), "the name of the file is not an id of a set"))
            continue
        values = _definition_of(name, "text", "classes", licence)
        values |= {"reader": "senteval", "source": "facebookresearch/SentEval, data/probing"}
        values["citation"] = "Conneau et al. (2018), What you can cram into a single vector"
        _write(path, target, values, done)


def _import_one(path: Path, target: Path, licence: str, done: Imported) -> None:
    name = path.parent.name
    try:
        if not _NAME.fullmatch(name):
            raise CorpusError(f"{path.parent}: the name of the folder is not an id of a set")
        if name in done.sets:
            raise CorpusError(f"{path.parent}: another folder has this name, and was imported")
        config = read_yaml(path.with_name(CONFIG), "configuration of the suite")
        kind = _input_of(config, path)
        task = "values" if config.get("num_labels") == 1 else "classes"
        values = _definition_of(name, kind, task, licence)
    except PoolbenchError as error:
        done.notes.append(Note(name, str(error)))
        return
    _write(path, target, values, done)


def _input_of(config: dict[str, Any], path: Path) -> Input:
    """Return the kind of input, which the suite declares in part: the first sample says how many spans there are."""
    declared = config.get("probe_task_type", "SENTENCE")
    where, row = next(records(path))
    if "inputs" not in row:
        raise CorpusError(f"{path}: no column 'inputs'; the columns are {', '.join(map(str, row))}")
    inputs = read_list(literal_in(row, "inputs"), where)
    match declared:
        case "SENTENCE":
            return "text" if len(inputs) < 2 else "text_pair"
        case "SENTENCE_PAIR_BI":
            return "text_pair"
        case "SENTENCE_TOKENS" | "SENTENCE_PAIR_TOKENS_BI":
            return "span" if len(inputs) < 2 else "span_pair"
        case "SENTENCE_SPANS":
            numbers = {element[-1] for element in inputs if isinstance(element, tuple | list) and element}
            return "span_pieces" if len(numbers) < 2 else "span_pair"
    raise ConfigError(f"{path.with_name(CONFIG)}: probe_task_type {declared!r} is not read: both texts in one context")


def _definition_of(name: str, kind: Input, task: str, licence: str) -> dict[str, Any]:
    suite_set = suite_sets().get(name)
    return {
        "id": name,
        "type": suite_set.type if suite_set else "syntax",
        "phenomenon": suite_set.phenomenon if suite_set else _UNKNOWN,
        "input": kind,
        "task": task,
        "source": suite_set.source if suite_set else "an imported folder",
        "revision": "as imported",
        "licence": licence,
        "citation": "Waldis et al. (2024), Holmes: A Benchmark to Assess the Linguistic Competence of Language Models",
        "fidelity": "same",
        "max_instances": 1_000_000,
        "reader": "table",
    }


def _write(path: Path, target: Path, values: dict[str, Any], done: Imported) -> None:
    """Copy the samples of a set, write its definition, and read it once."""
    name = values["id"]
    place = target / name / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.resolve() != place.resolve():
        shutil.copyfile(path, place)
    values["parameters"] = {"file": f"{name}/{path.name}"}
    try:
        definition = ProbingSet.model_validate(values | {"folder": target})
        data = probing_data(definition, samples_of(definition))
    except (PoolbenchError, ValueError) as error:
        shutil.rmtree(place.parent)
        done.notes.append(Note(name, str(error)))
        return
    (target / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), "utf-8")
    done.sets.append(name)
    if values["phenomenon"] == _UNKNOWN:
        done.notes.append(Note(name, f"the public suite has no such set; write type and phenomenon in {name}.yaml"))
    done.notes += [Note(note.where or name, note.reason) for note in data.notes]


@contextmanager
def _unpacked(source: Path, target: Path, notes: list[Note], *wanted: str) -> Iterator[Path]:
    """Give a folder as it is, and a zip archive as a temporary folder of the files that match a pattern."""
    if source.is_dir():
        yield source
        return
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".import-") as folder:
        try:
            with zipfile.ZipFile(source) as archive:
                _unpack(archive, Path(folder), source, notes, wanted)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise CorpusError(f"{source} is neither a folder nor a zip archive that can be read ({error})") from error
        yield Path(folder)


def _unpack(archive: zipfile.ZipFile, folder: Path, source: Path, notes: list[Note], wanted: Sequence[str]) -> None:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise CorpusError(f"{source} has {len(entries):,} entries; at most {MAX_ENTRIES:,} are read")
    room = MAX_TOTAL
    for entry in entries:
        name = PurePosixPath(entry.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or ":" in entry.filename:
            notes.append(Note(str(source), f"entry {shown(entry.filename)} leads outside the archive; it is left out"))
        elif any(fnmatchcase(name.name.lower(), pattern) for pattern in wanted) and name.parts[0] != "__MACOSX":
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as read, path.open("wb") as write:
                room -= _copy(read, write, min(room, MAX_FILE), f"{source}, entry {shown(entry.filename)}")


def _copy(source: IO[bytes], target: IO[bytes], limit: int, where: str) -> int:
    """Copy a file and return its size. Raise CorpusError if it is longer than the limit, whatever it declares."""
    size = 0
    while part := source.read(_COPIED):
        size += len(part)
        if size > limit:
            raise CorpusError(f"{where}: more than {limit:,} bytes")
        target.write(part)
    return size
