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

TASKS = ("concept", "classification", "regression")
NUMBERS = "fiub"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "truth values", "U": "words"}


def probe(
    vectors: Annotated[Path, typer.Argument(help=".npy [rows, width]; a row that is not finite has failed.")],
    labels: Annotated[Path, typer.Argument(help=".npy of 0 and 1, of classes, or of real values [rows].")],
    groups: Annotated[Path | None, typer.Option(help=".npy of group ids [rows].")] = None,
    pairs: Annotated[Path | None, typer.Option(help=".npy of matched pair ids [rows], empty for none.")] = None,
    domains: Annotated[Path | None, typer.Option(help=".npy of domains [rows], for leave-one-domain-out.")] = None,
    task: Annotated[str | None, typer.Option(help="concept, classification or regression; told from labels.")] = None,
    splits: Annotated[Path | None, typer.Option(help=".npy of train, dev, test [rows]; drawn if absent.")] = None,
    words: Annotated[Path | None, typer.Option(help=".npy of word types [rows]: control labels per type.")] = None,
) -> None:
    """D1 of vectors you have, or scores, selectivity and code length of another task."""
    from poolbench_driver.cluster.session import open_session

    if task is not None and task not in TASKS:
        raise InputError(f"--task is {task!r}; allowed: {', '.join(TASKS)}")
    body: dict[str, Any] = {"vectors": _rows(vectors), "labels": _labels(labels)}
    for name, file in (("groups", groups), ("splits", splits), ("words", words), ("domains", domains)):
        if file is not None:
            body[name] = _names(file)
    if pairs is not None:
        body["pairs"] = [name or None for name in _names(pairs)]
    if task is not None:
        body["task"] = task
    if words is not None:
        body["task_params"] = {"control": "word_type"}
    _show(open_session().services.post("prober", "probe", body))


def _rows(file: Path) -> list[list[float] | None]:
    """Vectors, null where one is not finite: JSON has no word for it, and the service counts what is missing."""
    matrix = load_array(file, 2).astype("float64")
    finite = (abs(matrix) < float("inf")).tolist()
    return [row if all(usable) else None for row, usable in zip(matrix.tolist(), finite, strict=True)]


def _labels(file: Path) -> list[Any]:
    array = load_array(file, 1, NUMBERS + "U")
    if array.dtype.kind == "b":
        array = array.astype("int64")  # requests take no booleans for numbers
    if array.dtype.kind == "f":
        array = array.astype("float64")
        if not (abs(array) < float("inf")).all():
            raise InputError(f"{file} holds labels that are not finite; leave their rows out")
    return list(array.tolist())


def _names(file: Path) -> list[str]:
    return [str(entry) for entry in load_array(file, 1, NUMBERS + "U").tolist()]


def load_array(file: Path, num_dims: int, kinds: str = NUMBERS) -> np.ndarray:
    """The numbers (or words) of a .npy file.

    Args:
        file: The file.
        num_dims: Dimensions that it must have.
        kinds: NumPy's letters for the types that may be in it.

    Raises:
        InputError: If there is no such file, or it holds other types or dimensions.
    """
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} is not a readable .npy file: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != num_dims:
        raise InputError(f"{file} has shape {getattr(array, 'shape', None)}; {num_dims} dimensions are needed")
    if array.dtype.kind not in kinds:
        allowed = ", ".join(_KINDS[kind] for kind in kinds)
        raise InputError(f"{file} holds {array.dtype}; allowed are {allowed} (bfloat16: save as float32)")
    return array


def _show(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (probe, score):
        app.command()(command)
