"""Ad-hoc questions to one service each: probe, score; `steer` has a module of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import InputError
from poolbench_driver.cli.scoring import score

if TYPE_CHECKING:
    import numpy as np


def probe(
    vectors: Annotated[Path, typer.Argument(help=".npy [rows, width].")],
    labels: Annotated[Path, typer.Argument(help=".npy of 0 and 1, of classes, or of real values [rows].")],
    groups: Annotated[Path | None, typer.Option(help=".npy of group ids [rows].")] = None,
    task: Annotated[str | None, typer.Option(help="concept, classification or regression; told from labels.")] = None,
    splits: Annotated[Path | None, typer.Option(help=".npy of train, dev, test [rows]; drawn if absent.")] = None,
    words: Annotated[Path | None, typer.Option(help=".npy of word types [rows]: control labels per type.")] = None,
) -> None:
    """D1 of vectors you have, or scores, selectivity and code length of another task."""
    from poolbench_driver.cluster.session import open_session

    body: dict[str, Any] = {"vectors": load_array(vectors, 2).tolist(), "labels": load_array(labels, 1).tolist()}
    for name, file in (("groups", groups), ("splits", splits), ("words", words)):
        if file is not None:
            body[name] = [str(entry) for entry in load_array(file, 1)]
    if task is not None:
        body["task"] = task
    if words is not None:
        body["task_params"] = {"control": "word_type"}
    _show(open_session().services.post("prober", "probe", body))


def load_array(file: Path, num_dims: int) -> np.ndarray:
    """The numbers of a .npy file.

    Raises:
        InputError: If there is no such file, it holds no plain numbers, or not as many dimensions.
    """
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} is not a readable .npy file: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != num_dims:
        raise InputError(f"{file} has shape {getattr(array, 'shape', None)}; {num_dims} dimensions are needed")
    return array


def _show(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (probe, score):
        app.command()(command)
