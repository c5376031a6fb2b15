"""import: what others computed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Import what others computed.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Import what others computed."""


@app.command()
def activations(
    folder: Annotated[Path, typer.Argument(help="Folder of <passage id>.npy files, one folder a concept.")],
    name: Annotated[str, typer.Option(help="What to call them; `run --activations NAME` measures them.")],
    corpus: Annotated[Path, typer.Option(help="Folder of the passages, JSONL files in the published layout.")],
    layers: Annotated[str | None, typer.Option(help="Blocks that the files hold, e.g. 7,15,23 (0-based).")] = None,
    concepts: Annotated[str | None, typer.Option(help="Comma-separated concept ids; default: the corpus's.")] = None,
    bos: Annotated[bool | None, typer.Option("--bos/--no-bos", help="Whether position 0 is a BOS token.")] = None,
    trust_pickle: Annotated[bool, typer.Option("--trust-pickle", help="Read files of Python objects.")] = False,
) -> None:
    """Turn published per-token states into kept states, so that D1 runs on them without the model."""
    from poolbench_driver.activation_files import ActivationReader
    from poolbench_driver.activation_import import Importer
    from poolbench_driver.corpus_folder import concepts_in
    from poolbench_driver.session import open_session

    if trust_pickle:
        typer.echo(
            "warning: --trust-pickle: any code in these files runs now, with all your rights. Go on only with files "
            "whose origin you know.",
            err=True,
        )
    reader = ActivationReader(_blocks(layers), trust_pickle)
    importer = Importer(open_session().artifacts, folder, corpus, reader, bos, typer.echo)
    record = importer.run(name, concepts_in(corpus, concepts))
    blocks = ", ".join(map(str, record.layers))
    typer.echo(f"{name}: {len(record.concepts)} concepts, layers {blocks}, width {record.width}, {record.revision}")
    typer.echo(f"measure them: poolbench-driver run --activations {name}")


def _blocks(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise typer.BadParameter(f"--layers {text}: use block indices such as 7,15,23, each once")
    return tuple(int(part) for part in parts)
