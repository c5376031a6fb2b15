"""Folders of probing sets as tables, such as the one that ships: sets, passages that they share, and a manifest.

| file | one row per |
|---|---|
| `sets.parquet` | set: the fields of its definition, its classes, its number of instances |
| `sets/<id>.parquet` | instance: numbers of passages, spans, label, split, group |
| `passages.parquet` | text; the first has the number 0 |
| `MANIFEST.csv` | file: its source, licence and SHA-256 |
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from poolbench.config.models import asset_path
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.probing.samples import ProbingSet, definition_of
from poolbench_corpora.reading import Row, name_in, read_rows

ASSET, SHARE_ALIKE = "probing_sets", "share_alike"
SETS, PASSAGES, MANIFEST = "sets.parquet", "passages.parquet", "MANIFEST.csv"
MANIFEST_COLUMNS = ("file", "source", "commit", "licence", "sha256")
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("phenomenon", pa.string()),
        ("input", pa.string()),
        ("task", pa.string()),
        ("fidelity", pa.string()),
        ("stands_for", pa.string()),
        ("instances", pa.int32()),
        ("classes", pa.list_(pa.string())),
        ("source", pa.string()),
        ("revision", pa.string()),
        ("licence", pa.string()),
        ("citation", pa.string()),
    ]
)
"""Columns of `sets.parquet`."""


def file_of(name: str) -> str:
    """Return the file of the instances of a set, below its folder."""
    return f"sets/{name}.parquet"


def shipped_folders() -> tuple[Path, ...]:
    """Return the folders that ship, those with share-alike texts apart.

    Raise ConfigError or UnknownNameError if they are not on this machine.
    """
    folder = asset_path(ASSET)
    return folder, folder / SHARE_ALIKE


def are_shipped() -> bool:
    """Return whether the folders are on this machine: a client without a checkout has none."""
    try:
        return bool(shipped_folders())
    except (ConfigError, UnknownNameError):
        return False


def read_sets(folder: Path) -> Iterator[ProbingSet]:
    """Yield the definitions in the table of sets of a folder.

    Raises:
        CorpusError: The table is damaged, is not the one of the manifest, or lacks a column.
        ConfigError: A field of a definition is wrong, such as an empty licence.
    """
    path = folder / SETS
    require_unchanged(path, folder)
    for row in read_rows(path):
        require_columns(row, path, *COLUMNS.names)
        fields = {name: row.values[name] for name in COLUMNS.names if row.values[name] is not None}
        fields["max_instances"] = fields.pop("instances", None)
        name = name_in(row.values, "id", row.where)
        fields |= {"reader": "table", "folder": folder}
        fields["parameters"] = {"file": file_of(name), "passages": PASSAGES}
        yield definition_of(fields, f"{row.where} ({name})", ProbingSet)


def require_columns(row: Row, path: Path, *columns: str) -> None:
    """Raise CorpusError if a row of a table lacks a column."""
    if lacking := [name for name in columns if name not in row.values]:
        raise CorpusError(f"{path}: no column {lacking[0]!r}; the columns are {', '.join(map(str, row.values))}")


def require_unchanged(path: Path, folder: Path) -> str:
    """Return the SHA-256 of a file. Raise CorpusError if it is not the one that the manifest of its folder has."""
    manifest, name = folder / MANIFEST, path.relative_to(folder).as_posix()
    sha256_by_file: dict[str, str] = {}
    for row in read_rows(manifest):
        require_columns(row, manifest, "file", "sha256")
        sha256_by_file[row.values["file"]] = row.values["sha256"]
    if name not in sha256_by_file:
        raise CorpusError(f"{manifest} does not name {name}; it names {', '.join(list(sha256_by_file)[:5])}, ...")
    try:
        with path.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror or error}") from None
    if sha256 != sha256_by_file[name]:
        raise CorpusError(
            f"{path} is damaged or was replaced: its SHA-256 is {sha256}, and {manifest.name} has "
            f"{sha256_by_file[name]}; take all files of the folder from one copy"
        )
    return sha256
