"""Requests to one service: `probe` and `score`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import InputError
from poolbench_driver.adhoc.texts import TextLine, read_lines, read_texts
from poolbench_driver.cli.display import print_table

if TYPE_CHECKING:
    import numpy as np

    from poolbench_driver.cluster.session import Services


TASKS = ("concept", "classification", "regression")
NUMBERS = "fiub"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "truth values", "U": "words"}


def probe(
    vectors: Annotated[Path, typer.Argument(help=".npy [rows, width]; a row that is not finite has failed.")],
    labels: Annotated[Path, typer.Argument(help=".npy of 0 and 1, of classes, or of real values [rows].")],
    groups: Annotated[Path | None, typer.Option(help=".npy of group ids [rows].")] = None,
    pairs: Annotated[Path | None, typer.Option(help=".npy of matched pair ids [rows], empty for none.")] = None,
    domains: Annotated[Path | None, typer.Option(help=".npy of domains [rows], for leave-one-domain-out.")] = None,
    task: Annotated[
        str | None, typer.Option(help="concept, classification or regression; default: by the labels.")
    ] = None,
    splits: Annotated[Path | None, typer.Option(help=".npy of train, dev, test [rows]; drawn if absent.")] = None,
    words: Annotated[Path | None, typer.Option(help=".npy of word types [rows]: control labels per type.")] = None,
) -> None:
    """Compute D1 of your vectors, or scores, selectivity and code length of another task."""
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
    answer = open_session().services.post("prober", "probe", body)
    typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))


def _rows(file: Path) -> list[list[float] | None]:
    """Return vectors, null where one is not finite: JSON cannot represent it, and the service counts missing ones."""
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
    """Return the numbers (or words) of a .npy file.

    Args:
        kinds: NumPy's letters for the types that may be in it.

    Raises:
        InputError: If there is no such file, or it holds other types or dimensions.
    """
    import numpy as np

    try:
        array = np.load(file, allow_pickle=False)
    except Exception as error:  # NumPy raises many kinds, also MemoryError for the size that a header claims
        raise InputError(f"{file} is not a readable .npy file: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != num_dims:
        raise InputError(f"{file} has shape {getattr(array, 'shape', None)}; {num_dims} dimensions are needed")
    if array.dtype.kind not in kinds:
        allowed = ", ".join(_KINDS[kind] for kind in kinds)
        raise InputError(f"{file} holds {array.dtype}; allowed are {allowed} (bfloat16: save as float32)")
    if array.dtype.kind == "U":
        _require_unicode(array, file)
    return array


def _require_unicode(array: np.ndarray, file: Path) -> None:
    """Raise InputError for words with numbers that are no characters: Python cannot make strings of them."""
    import numpy as np

    if array.dtype.itemsize:
        numbers = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if ((numbers > 0x10FFFF) | ((numbers >= 0xD800) & (numbers <= 0xDFFF))).any():
            raise InputError(f"{file} holds words that are no valid Unicode; save them again")


#: Texts of one request: some seconds of work on one core, so that progress shows.
REQUEST_TEXTS = 200
SHOWN_CHARACTERS = 60


def score(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to score; or give --input.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="JSONL with 'text' and perhaps 'id', or plain text, one a line.")
    ] = None,
    scorer: Annotated[
        list[str] | None,
        typer.Option(help="Concept, concept@base, or an id or key of `ls scorers`; several score at once."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Print P(concept) of texts by trained or imported scorers."""
    from poolbench_driver.cluster.session import open_session

    if not scorer:
        raise InputError("no --scorer: give a concept such as contrast, or several; `ls scorers` lists what there is")
    lines = _lines(texts or [], input_)
    answer = _score(open_session().services, lines, list(dict.fromkeys(scorer)))
    if as_json:
        typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        _print(answer["scorers"], lines)


COMMANDS = (probe, score)


def _lines(texts: Sequence[str], file: Path | None) -> list[TextLine]:
    """Return the texts of the command line or of the file; raise InputError for both, neither or an empty text."""
    if bool(texts) == (file is not None):
        raise InputError("give texts as arguments, or a file with --input: one of the two")
    if file is not None:
        read_texts(file)  # raises an error with the line that is empty
        return read_lines(file)
    if empty := [index for index, text in enumerate(texts, 1) if not text.strip()]:
        raise InputError(f"text {empty[0]} is empty: nothing to score")
    return [TextLine(number, text) for number, text in enumerate(texts, 1)]


def _score(services: Services, lines: Sequence[TextLine], names: Sequence[str]) -> dict[str, Any]:
    """Return the service's response to all texts; they are sent in parts for the progress bar."""
    whole: list[dict[str, Any]] = []
    with typer.progressbar(length=len(lines), label="scoring", file=sys.stderr) as bar:
        for start in range(0, len(lines), REQUEST_TEXTS):
            part = lines[start : start + REQUEST_TEXTS]
            body = {"texts": [line.text for line in part], "scorers": list(names)}
            answer = services.post("scorer", "score", body)["scorers"]
            whole = whole or [{**one, "name": name, "scores": []} for name, one in zip(names, answer, strict=True)]
            for kept, one in zip(whole, answer, strict=True):
                kept["scores"] += one["scores"]
            bar.update(len(part))
    return {"ids": [_name(line) for line in lines], "scorers": whole}


def _print(scorers: Sequence[dict[str, Any]], lines: Sequence[TextLine]) -> None:
    columns = [one["name"] for one in scorers]
    rows = [
        {"id": _name(line), "text": _shortened(line.text)}
        | {name: f"{one['scores'][index]:.3f}" for name, one in zip(columns, scorers, strict=True)}
        for index, line in enumerate(lines)
    ]
    print_table(rows, ("id", *columns, "text"))


def _name(line: TextLine) -> str:
    return line.id if line.id is not None else str(line.number)


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_CHARACTERS else flat[: SHOWN_CHARACTERS - 1] + "…"
