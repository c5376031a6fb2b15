"""Bundles: a run as one file that others verify. It holds figures and scores, and no text.

A bundle is a ZIP of what `export run` writes without page and texts, and of a signature of its checksums, whose hash is
the digest of the bundle. Who opens one trusts nothing of it: names, sizes and columns are checked before more is read.
"""

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.errors import InputError, NotFoundError, RestrictedError
from poolbench.statuses import RunState
from poolbench.storage import Artifacts
from poolbench_driver.dataset_folder import CARD, CHECKSUMS, CROISSANT, MANIFEST, files_below, sha256_of
from poolbench_driver.records import Run
from poolbench_driver.records.run import CONFIG_FILE
from poolbench_driver.release.run import ENVIRONMENT, export_run
from poolbench_driver.sharing.signatures import sign
from poolbench_driver.sharing.submission import SCORES, SUBMISSION, Submission, read_submission

SIGNATURE = f"{CHECKSUMS}.sig"
_SUBMITTED = (SUBMISSION, SCORES, CONFIG_FILE)
_FILES = "|".join(map(re.escape, (CARD, MANIFEST, CHECKSUMS, CROISSANT, ENVIRONMENT, SIGNATURE, *_SUBMITTED)))
#: Names of the files of a bundle: those above, and those of one run in its folder.
_NAME = re.compile(rf"{_FILES}|\w[\w.-]*/\w[\w.-]*\.(?:parquet|json|yaml)", re.ASCII)
#: Most files of a bundle, most bytes of all together, and most bytes for each packed one.
MOST_FILES, MOST_BYTES, MOST_RATIO = 200, 4 << 30, 200
#: Most values of a table: a small Parquet file can hold as many equal ones as its writer likes.
MOST_VALUES = 200_000_000
#: Columns that hold texts in the tables of services and suites.
_TEXT_COLUMNS = {"text", "texts", "prompt", "opening", "passage", "completion", "instruction"}


@dataclass(frozen=True)
class Bundle:
    """The files of an opened bundle.

    Attributes:
        root: The folder of the files.
        folder: The run. That of a submission by another program is yet to be written.
        submission: What another program submitted, or None if the bundle holds a run.
    """

    root: Path
    folder: Run
    submission: Submission | None = None

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the checksums of its files."""
        return sha256_of(self.root / CHECKSUMS)


def submit(
    folder: Run,
    artifacts: Artifacts,
    keys: Iterable[str],
    output: Path,
    *,
    key: Path | None = None,
    licence: str,
    command: str,
    on_part: Callable[[int], object] = lambda parts: None,
) -> str:
    """Write the bundle of a run and return its digest.

    Args:
        keys: Keys of the artifacts that the run needs. The bundle names their producers.
        key: Private key that signs the bundle, or None to leave the bundle unsigned.

    Raises:
        NotFoundError: The run has not ended.
        RestrictedError: A table holds texts that its suite does not declare.
        IntegrityError: A file of the run differs from its manifest.
        InputError: The key cannot sign, or `output` is a folder.
    """
    state = folder.read_state().get("state")
    if state not in (None, RunState.DONE, RunState.FAILURES):
        raise NotFoundError(f"run {folder.id} has not ended (state: {state}); the same `run` command finishes it")
    if output.is_dir():
        raise InputError(f"{output} is a folder; name a file, such as {output / 'run.zip'}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".submit-") as place:
        root, packed = Path(place, "bundle"), Path(place, "packed.zip")
        export_run(folder, artifacts, keys, root, licence=licence, command=command, with_texts=False, on_part=on_part)
        if refused := refused_tables(root):
            raise RestrictedError(f"{refused[0]}; a bundle holds scores only")
        if key is not None:
            sign(root / CHECKSUMS, key)
        pack(root, packed)
        packed.replace(output)
        return sha256_of(root / CHECKSUMS)


def pack(root: Path, output: Path) -> None:
    """Write the files below a folder as a ZIP. Equal files give equal bytes."""
    with zipfile.ZipFile(output, "w") as archive:
        for name in files_below(root):
            archive.writestr(zipfile.ZipInfo(name), (root / name).read_bytes(), zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class _Entry:
    """A file of a bundle that is not opened yet."""

    name: str  # its path, without the folder around the bundle that some programs add
    stored_name: str
    is_regular: bool
    size: int
    packed_size: int
    read: Callable[[], IO[Any]]  # in bytes


@contextmanager
def opened(file: Path, place: Path | None = None) -> Iterator[Bundle]:
    """Yield a bundle, unpacked into a folder that is removed afterwards, or into `place`, which stays.

    Args:
        file: A ZIP, also one that another program packed from the same files, or the unpacked folder.

    Raises:
        NotFoundError: The file does not exist.
        InputError: The file is not a bundle, or must not be unpacked. The message says why.
    """
    if not file.exists():
        raise NotFoundError(f"no bundle {file}; `poolbench-driver submit RUN --output {file}` writes one")
    with tempfile.TemporaryDirectory(prefix="poolbench-bundle-") as temporary:
        root = place or Path(temporary)
        try:
            if file.is_dir():
                _copy(_entries_of_folder(file), root)
            else:
                with zipfile.ZipFile(file) as archive:
                    _copy(_entries_of_zip(archive), root)
        except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, OSError) as error:
            raise InputError(f"it is not a whole {'folder' if file.is_dir() else 'ZIP file'} ({error})") from None
        if refused := refused_tables(root):
            raise InputError("; ".join(refused[:3]))
        if (root / SUBMISSION).is_file():
            if others := set(files_below(root)) - {*_SUBMITTED, CHECKSUMS, SIGNATURE}:
                raise InputError(f"{', '.join(sorted(others)[:3])}: a submission has no such file")
            if lacking := [name for name in (CONFIG_FILE, CHECKSUMS) if not (root / name).is_file()]:
                raise InputError(f"the submission lacks {' and '.join(lacking)}")
            submission = read_submission(root)
            yield Bundle(root, Run(root / submission.method.name), submission)
            return
        runs = [path.parent for path in root.glob(f"*/{CONFIG_FILE}")]
        if len(runs) != 1 or not (root / CHECKSUMS).is_file() or len({*root.glob("*/")}) != 1:
            raise InputError(f"it is not a bundle: one run and {CHECKSUMS} are needed, and nothing else")
        yield Bundle(root, Run(runs[0]))


def is_added(name: str) -> bool:
    """Return whether a file or folder was added by macOS or Windows, not by the user."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1].startswith("._") or parts[-1] in (".DS_Store", "Thumbs.db", "desktop.ini")


def _entries_of_zip(archive: zipfile.ZipFile) -> list[_Entry]:
    """Return the files of a ZIP. Entries of folders, which some programs write, hold nothing."""
    entries = []
    for info in archive.infolist():
        name = info.filename.replace("\\", "/")  # as old programs of Windows write it
        if not name.endswith("/"):
            is_regular = info.external_attr >> 28 in (0, 8)
            read = partial(archive.open, info)
            entries.append(_Entry(name, info.filename, is_regular, info.file_size, info.compress_size, read))
    return _without_folder_around(entries)


def _entries_of_folder(folder: Path) -> list[_Entry]:
    entries = []
    for path in sorted(islice(folder.rglob("*"), 10 * MOST_FILES)):  # any folder may be named
        if path.is_symlink() or not path.is_dir():
            name, size = path.relative_to(folder).as_posix(), path.lstat().st_size
            is_regular = path.is_file() and not path.is_symlink()
            entries.append(_Entry(name, name, is_regular, size, size, partial(open, path, "rb")))
    if not any(PurePosixPath(entry.name).name == CHECKSUMS for entry in entries):
        raise InputError(f"it is a folder without {CHECKSUMS}, and not a bundle; `poolbench-driver submit` writes one")
    return _without_folder_around(entries)


def _without_folder_around(entries: Iterable[_Entry]) -> list[_Entry]:
    """Return the files of a bundle without additions of file managers: extra files, and a folder around all files."""
    files = [entry for entry in entries if not is_added(entry.name)]
    folders = [entry.name.removesuffix(CHECKSUMS) for entry in files if PurePosixPath(entry.name).name == CHECKSUMS]
    around = min(folders, key=len, default="")
    if all(entry.name.startswith(around) for entry in files):
        return [replace(entry, name=entry.name.removeprefix(around)) for entry in files]
    return files


def _copy(entries: Sequence[_Entry], root: Path) -> None:
    """Write the files of a bundle below a folder. Write nothing and raise InputError if a file is not safe."""
    _require_harmless(entries)
    for entry in entries:
        target = root / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with entry.read() as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy)  # of a ZIP, at most as many bytes as the entry declares


def _require_harmless(entries: Iterable[_Entry]) -> None:
    """Raise InputError for files that do not belong into a bundle, or would take too much room."""
    names, total = set[str](), 0
    for entry in entries:
        if not _NAME.fullmatch(entry.name) or not entry.is_regular:
            raise InputError(f"its entry {entry.stored_name[:100]!r} does not belong into a bundle")
        if entry.name in names:
            raise InputError(f"its entry {entry.stored_name[:100]!r} is there twice")
        names.add(entry.name)
        total += entry.size
        if len(names) > MOST_FILES or total > MOST_BYTES or entry.size > MOST_RATIO * entry.packed_size + 65_536:
            raise InputError(
                f"its entry {entry.name!r} has {entry.size:,} bytes, packed as {entry.packed_size:,}: a bundle has at "
                f"most {MOST_FILES} files, {MOST_BYTES >> 30} GiB, and {MOST_RATIO} bytes for each packed one"
            )


def refused_tables(root: Path) -> list[str]:
    """Return which tables of a bundle hold texts or more values than any run has, or cannot be read."""
    refused = list[str]()
    for file in sorted(root.glob("**/*.parquet")):
        try:
            metadata, schema = pq.read_metadata(file), pq.read_schema(file)
        except (pa.ArrowException, OSError) as error:
            refused.append(f"{file.name} is not a whole Parquet file ({str(error)[:80]})")
            continue
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        in_lists = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
        num_values = max(in_lists, metadata.num_rows * max(1, len(schema)))
        texts = [field.name for field in schema if field.name in _TEXT_COLUMNS or _has_strings_inside(field.type)]
        refused += [f"{file.name} has {num_values:,} values"] if num_values > MOST_VALUES else []
        refused += [f"{file.name} holds texts ({', '.join(texts)})"] if texts else []
    return refused


def _has_strings_inside(kind: pa.DataType) -> bool:
    """Return whether lists, structures or maps of a column hold strings."""
    inner = [kind.field(place).type for place in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(_has_strings_inside(part) or any(check(part) for check in is_text) for part in inner)


def checksums(data: bytes) -> dict[str, str]:
    """Parse a file `SHA256SUMS` into hashes by path. Raise InputError if it is damaged or a path leads outside."""
    lines = data.decode("utf-8", "replace").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in sums.items():
        if not re.fullmatch("[0-9a-f]{64}", digest) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{CHECKSUMS} has the line {digest[:64]!r} {name[:100]!r}")
    return sums
