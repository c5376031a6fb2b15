"""The table of a run of which features of an autoencoder answer to which subjects."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts import Row
from poolbench.contracts.tables import SUBJECT_FEATURES
from poolbench.errors import InputError, NotFoundError, UnknownNameError
from poolbench_driver.records.folder import RunFolder, list_runs

#: The table's name, and its columns: SUBJECT_FEATURES of each autoencoder.
FEATURES = "features"
FEATURES_SCHEMA = pa.schema([("autoencoder", pa.string()), *SUBJECT_FEATURES])


def features_of(
    table: pa.Table,
    autoencoder: str | None = None,
    *,
    feature: int | None = None,
    subject: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Return rows of the table, the largest z first.

    Args:
        table: The table of a run.
        autoencoder: Its name; by default all, but for a feature, whose number means something in one alone.
        feature: Only its rows.
        subject: Only its rows.
        limit: Most rows.

    Raises:
        UnknownNameError: The table has no such autoencoder or subject.
        InputError: A feature of several autoencoders, or one without a row.
    """
    names, subjects = (table[column].unique().to_pylist() for column in ("autoencoder", "subject"))
    if autoencoder is not None:
        table = table.filter(_is(table, "autoencoder", autoencoder, names))
    elif feature is not None and len(names) > 1:
        raise InputError(f"--feature {feature}: of which autoencoder? Give --sae with one of {', '.join(names)}")
    if subject is not None:
        table = table.filter(_is(table, "subject", subject, subjects))
    if feature is not None:
        table = table.filter(pc.equal(table["feature"], feature))
        if not len(table):
            raise InputError(f"feature {feature} differs between the stories of none of the {len(subjects)} subjects")
    return table.sort_by([("z", "descending"), ("feature", "ascending")]).slice(0, limit).to_pylist()


def _is(table: pa.Table, column: str, value: str, known: Collection[str]) -> pa.ChunkedArray:
    if value not in known:
        raise UnknownNameError(column, value, known)
    return pc.equal(table[column], value)


def latest_features(output: Path, autoencoder: str) -> tuple[RunFolder, pa.Table]:
    """Return the newest run below `output` with features of an autoencoder, and its table.

    Raise NotFoundError if there is none.
    """
    for folder in list_runs(output):
        if folder.file(f"{FEATURES}.parquet").is_file():
            table = folder.read_table(FEATURES)
            if pc.any(pc.equal(table["autoencoder"], autoencoder)).as_py():
                return folder, table
    raise NotFoundError(
        f"no run in {output} has features of {autoencoder} by subject; one that compares autoencoders on stories makes "
        f"them (`run --saes {autoencoder}`)"
    )
