"""Bundles: a run as one file that others verify. It holds figures and scores, and no text.

A bundle is a ZIP of what `export run` writes without the page, and of a signature of its checksums, whose hash is the
digest of the bundle. Who opens one trusts nothing of it: names, sizes and columns are checked before more is read.
"""

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.errors import InputError, NotFoundError, RestrictedError
from poolbench.statuses import RunState
from poolbench.storage import Artifacts
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.dataset_folder import CARD, CHECKSUMS, CROISSANT, MANIFEST, files_below, sha256_of
from poolbench_driver.records import RunFolder
from poolbench_driver.release import ENVIRONMENT, export_run
from poolbench_driver.sharing.signatures import sign

SIGNATURE = f"{CHECKSUMS}.sig"
_FILES = "|".join(map(re.escape, (CARD, MANIFEST, CHECKSUMS, CROISSANT, ENVIRONMENT, SIGNATURE)))
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
    """The files of an opened bundle."""

    root: Path
    folder: RunFolder

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the checksums of its files."""
        return sha256_of(self.root / CHECKSUMS)


def submit(
    folder: RunFolder,
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
        keys: The artifacts that the run needs; who made them enters the bundle.
        key: Private key that signs it; None leaves it unsigned.

    Raises:
        NotFoundError: The run has not ended.
        RestrictedError: Its tables hold texts.
        IntegrityError: A file of the run is not as its manifest says.
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
        export_run(folder, artifacts, keys, root, licence=licence, command=command, with_report=False, on_part=on_part)
        refused = refused_tables(root)
        if refused or SUITES.get(folder.config().suite).shows_texts:
            why = refused[0] if refused else f"the tables of {folder.config().suite} show texts"
            raise RestrictedError(f"{why}; a bundle holds scores only")
        if key is not None:
            sign(root / CHECKSUMS, key)
        pack(root, packed)
        packed.replace(output)
        return sha256_of(root / CHECKSUMS)


def pack(root: Path, output: Path) -> None:
    """Write the files below a folder as a ZIP; equal files give equal bytes."""
    with zipfile.ZipFile(output, "w") as archive:
        for name in files_below(root):
            archive.writestr(zipfile.ZipInfo(name), (root / name).read_bytes(), zipfile.ZIP_DEFLATED)


@contextmanager
def opened(file: Path, place: Path | None = None) -> Iterator[Bundle]:
    """Yield a bundle, unpacked into a folder that is removed afterwards, or into `place`, which stays.

    Raises:
        NotFoundError: The file does not exist.
        InputError: It is not a bundle, or one that must not be unpacked; the message says why.
    """
    if not file.is_file():
        raise NotFoundError(f"no bundle {file}; `poolbench-driver submit RUN --output {file}` writes one")
    with tempfile.TemporaryDirectory(prefix="poolbench-bundle-") as temporary:
        root = place or Path(temporary)
        try:
            with zipfile.ZipFile(file) as archive:
                _require_harmless(archive.infolist())
                for entry in archive.infolist():
                    target = root / entry.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, target.open("xb") as copy:
                        shutil.copyfileobj(source, copy)  # at most as many bytes as the entry declares
        except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, OSError) as error:
            raise InputError(f"it is not a whole ZIP file ({error})") from None
        runs = [path.parent for path in root.glob("*/config.resolved.yaml")]
        if len(runs) != 1 or not (root / CHECKSUMS).is_file() or len({*root.glob("*/")}) != 1:
            raise InputError(f"it is not a bundle: one run and {CHECKSUMS} are needed, and nothing else")
        if refused := refused_tables(root):
            raise InputError("; ".join(refused[:3]))
        yield Bundle(root, RunFolder(runs[0]))


def _require_harmless(entries: Iterable[zipfile.ZipInfo]) -> None:
    """Raise InputError for entries that do not belong into a bundle, or would take too much room."""
    names, size = set[str](), 0
    for entry in entries:
        name, kind = entry.filename, entry.external_attr >> 28
        if not _NAME.fullmatch(name) or kind not in (0, 8) or name in names:  # 8: a regular file
            raise InputError(f"its entry {name[:100]!r} does not belong into a bundle, or is there twice")
        names.add(name)
        size += entry.file_size
        if len(names) > MOST_FILES or size > MOST_BYTES or entry.file_size > MOST_RATIO * entry.compress_size + 65_536:
            raise InputError(
                f"its entry {name!r} has {entry.file_size:,} bytes, packed as {entry.compress_size:,}: a bundle has at "
                f"most {MOST_FILES} files, {MOST_BYTES >> 30} GiB, and {MOST_RATIO} bytes for each packed one"
            )


def refused_tables(root: Path) -> list[str]:
    """Return which tables of a bundle hold texts or more values than any run has, or cannot be read."""
    refused = list[str]()
    for file in sorted(root.glob("*/*.parquet")):
        try:
            num_rows, schema = pq.read_metadata(file).num_rows, pq.read_schema(file)
        except (pa.ArrowException, OSError) as error:
            refused.append(f"{file.name} is not a whole Parquet file ({str(error)[:80]})")
            continue
        texts = [field.name for field in schema if field.name in _TEXT_COLUMNS or pa.types.is_nested(field.type)]
        refused += [f"{file.name} has {num_rows:,} rows"] if num_rows * max(1, len(schema)) > MOST_VALUES else []
        refused += [f"{file.name} holds texts ({', '.join(texts)})"] if texts else []
    return refused


def checksums(data: bytes) -> dict[str, str]:
    """Return SHA-256 by path as a file `SHA256SUMS` has it; raise InputError if it is damaged or leads outside."""
    lines = data.decode("utf-8", "replace").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in sums.items():
        if not re.fullmatch("[0-9a-f]{64}", digest) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{CHECKSUMS} has the line {digest[:64]!r} {name[:100]!r}")
    return sums
