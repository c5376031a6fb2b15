"""The command ``score``: P(concept) of texts given as arguments or in a file."""

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
    from poolbench_driver.cluster.client import Services

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
        typer.Option(help="Concept, concept@base, imported id or artifact key (`ls scorers`); several score at once."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """P(concept) of texts by trained or imported scorers."""
    from poolbench_driver.cluster.session import open_session

    if not scorer:
        raise InputError("no --scorer: give a concept such as contrast, or several; `ls scorers` lists what there is")
    lines = _lines(texts or [], input_)
    answer = _score(open_session().services, lines, list(dict.fromkeys(scorer)))
    if as_json:
        typer.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        _print(answer["scorers"], lines)


def _lines(texts: Sequence[str], file: Path | None) -> list[TextLine]:
    """The texts of the command line, or of the file.

    Raises:
        InputError: If both or neither are given, or one is empty.
    """
    if bool(texts) == (file is not None):
        raise InputError("give texts as arguments, or a file with --input: one of the two")
    if file is not None:
        read_texts(file)  # says which line is empty
        return read_lines(file)
    if empty := [index for index, text in enumerate(texts, 1) if not text.strip()]:
        raise InputError(f"text {empty[0]} is empty: nothing to score")
    return [TextLine(number, text) for number, text in enumerate(texts, 1)]


def _score(services: Services, lines: Sequence[TextLine], names: Sequence[str]) -> dict[str, Any]:
    """What the service answers to all texts at once; asked in parts, so that progress shows."""
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
