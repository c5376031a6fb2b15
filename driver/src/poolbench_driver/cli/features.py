"""`features`: which subjects a feature of an autoencoder answers to, and which features answer to a subject."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data, print_table

_COLUMNS = ("autoencoder", "feature", "subject", "first", "second", "difference", "z")
#: What the columns of a row are called where people read them.
_HEADS = {"first": "mean, high", "second": "mean, low"}


def features(
    name: Annotated[str, typer.Argument(help="Run id, or 'latest'; a run that compared autoencoders.")] = "latest",
    feature: Annotated[int | None, typer.Option(help="Number of a feature: which subjects does it answer to?")] = None,
    subject: Annotated[str | None, typer.Option(help="A subject: which features answer to it?")] = None,
    sae: Annotated[str | None, typer.Option(help="Only this autoencoder; a feature of several needs it.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Most rows; 0 shows all.")] = 20,
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List features of autoencoders by subject, those first that differ most between its high and low stories."""
    from poolbench_driver.records import find_run
    from poolbench_driver.records.features import FEATURES, features_of

    run = find_run(output, name)
    rows = features_of(run.tables[FEATURES], sae, feature=feature, subject=subject, limit=top or None)
    if as_json:
        print_data(rows)
        return
    numbers = {"first": ".4f", "second": ".4f", "difference": "+.4f", "z": ".1f"}
    lines = [
        {_HEADS.get(column, column): format(row[column], numbers.get(column, "")) for column in _COLUMNS}
        for row in rows
    ]
    print_table(lines, [_HEADS.get(column, column) for column in _COLUMNS])
