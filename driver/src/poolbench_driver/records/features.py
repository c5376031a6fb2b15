"""The table of features by subject of a run, and the features that a subject is steered by."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts import Row
from poolbench.contracts.tables import SUBJECT_FEATURES
from poolbench.errors import InputError, NotFoundError, UnknownNameError
from poolbench.model_folders.folders import local_folder
from poolbench_driver.records.finding import Runs, find_run
from poolbench_driver.records.run import Run

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
        autoencoder: Return rows of this autoencoder only. Required with `feature` if the table has several of them.
        feature: Return rows of the feature with this number only.
        subject: Return rows of this subject only.
        limit: Largest number of rows.

    Raises:
        UnknownNameError: The table has no such autoencoder or subject.
        InputError: `feature` is ambiguous, because the table has several autoencoders, or the feature has no row.
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


#: Features that direction C5 is made of, as in PoolBench.
C5_FEATURES = 10


def weights_of_subject(
    output: Path, run: str | None, autoencoder: str, identity: str, model: str, subject: str
) -> tuple[str, dict[int, float]]:
    """Return a run, and the weights of the features that differ most between the high and low stories of a subject.

    Args:
        output: Folder that runs lie in.
        run: Id of the run; by default the newest that has features of the autoencoder.
        autoencoder: Name of the autoencoder in the run.
        identity: Id of the autoencoder: the hash of its weights and configuration.
        model: The model that is steered.
        subject: The subject.

    Raises:
        NotFoundError: No run has features of the autoencoder.
        UnknownNameError: The run has no such autoencoder or subject.
        InputError: The run measured another model, or another autoencoder of this name; or no feature differs.
    """
    measured = _latest(output, autoencoder) if run is None else find_run(output, run)
    measured_model = measured.config.model
    if model not in (measured_model, str(local_folder(measured_model))):
        raise InputError(f"run {measured.id} measured {measured_model}; steer that with --model {measured_model}")
    entrants = measured.tables["entrants"].to_pylist()
    if any(row["entrant"] == autoencoder and row["autoencoder"] != identity for row in entrants):
        raise InputError(f"run {measured.id} measured another autoencoder called {autoencoder}; measure this one again")
    rows = features_of(measured.tables[FEATURES], autoencoder, subject=subject)
    if not rows:
        raise InputError(f"no feature of {autoencoder} differs between the high and the low stories of {subject}")
    largest = sorted(rows, key=lambda row: (-abs(row["difference"]), row["feature"]))[:C5_FEATURES]
    return measured.id, {row["feature"]: row["difference"] for row in largest}


def _latest(output: Path, autoencoder: str) -> Run:
    """Return the newest run with features of an autoencoder. Raise NotFoundError if there is none."""
    for run in Runs(output).all():
        table = run.read_table(FEATURES, ["autoencoder"]) if FEATURES in run.tables else FEATURES_SCHEMA.empty_table()
        if autoencoder in table["autoencoder"].unique().to_pylist():
            return run
    raise NotFoundError(
        f"no run in {output} has features of {autoencoder} by subject; one that compares autoencoders on stories makes "
        f"them (`run --saes {autoencoder}`)"
    )
