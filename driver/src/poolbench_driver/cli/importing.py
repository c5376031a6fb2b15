"""import: results computed elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from poolbench_corpora.probing.importing import Imported

app = typer.Typer(help="Import what others computed.", no_args_is_help=True)


@app.command()
def activations(
    folder: Annotated[Path, typer.Argument(help="Folder of <passage id>.npy files, or of files per layer.")],
    name: Annotated[str, typer.Option(help="What to call them; `run --activations NAME` measures them.")],
    corpus: Annotated[Path, typer.Option(help="Folder of the passages, JSONL files in the published layout.")],
    layers: Annotated[str | None, typer.Option(help="Blocks that the files hold, e.g. 7,15,23 (0-based).")] = None,
    concepts: Annotated[str | None, typer.Option(help="Comma-separated concept ids; default: the corpus's.")] = None,
    bos: Annotated[bool | None, typer.Option("--bos/--no-bos", help="Whether position 0 is a BOS token.")] = None,
    trust_pickle: Annotated[bool, typer.Option("--trust-pickle", help="Read files of Python objects.")] = False,
) -> None:
    """Turn published per-token states into kept states, so that D1 runs on them without the model."""
    from poolbench_corpora.folders.importing import concepts_in
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.imports.activation_files import ActivationReader
    from poolbench_driver.imports.activations import Importer

    if trust_pickle:
        typer.echo(
            "warning: --trust-pickle: any code in these files runs now, with all your rights. Go on only with files "
            "whose origin you know.",
            err=True,
        )
    reader = ActivationReader(_blocks(layers), trust_pickle)
    importer = Importer(open_artifacts(), folder, corpus, reader, bos, partial(typer.echo, err=True))
    record = importer.run(name, concepts_in(corpus, concepts))
    blocks = ", ".join(map(str, record.layers))
    typer.echo(f"{name}: {len(record.concepts)} concepts, layers {blocks}, width {record.width}, {record.revision}")
    typer.echo(f"measure them: poolbench-driver run --activations {name}", err=True)


@app.command()
def scorers(
    source: Annotated[str, typer.Argument(help="Hugging Face id, or a folder that the scorer service can read.")],
    concepts: Annotated[str | None, typer.Option(help="Comma-separated; default: the folder's subfolders.")] = None,
    positive_label: Annotated[
        str | None, typer.Option(help="Label (or its index) that means the concept; {concept} stands for its id.")
    ] = None,
    subfolder: Annotated[str, typer.Option(help="Place of each classifier inside; '' is the root.")] = "{concept}",
    revision: Annotated[str | None, typer.Option(help="Hugging Face revision.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Base whose tokenizer they read with, if they lack one.")
    ] = None,
) -> int:
    """Take published classifiers as scorers, so that `score --scorer CONCEPT` answers with them."""
    from poolbench.model_folders.folders import list_folder
    from poolbench_driver.cluster.services import open_services
    from poolbench_driver.imports.scorers import concepts_at, import_scorers

    source = list_folder(source)  # an absolute path: the service runs elsewhere
    settings = {"source": source, "positive_label": positive_label, "subfolder": subfolder}
    settings |= {"revision": revision, "tokenizer": None if tokenizer is None else list_folder(tokenizer)}
    names = concepts_at(source, concepts)
    ask = _ask_label if sys.stdin.isatty() else None
    failed = 0
    for done in import_scorers(open_services(), names, settings, ask):
        failed += done.error is not None
        label = done.answer.get("report", {}).get("positive_label")
        line = done.error or f"{done.answer['id']}: {label} means {done.concept}"
        typer.echo(line, err=done.error is not None)
    return 1 if failed else 0


Source = Annotated[str, typer.Argument(help="Folder or file that was downloaded, or its address (https://...).")]
Target = Annotated[Path, typer.Argument(help="Folder for the probing sets; `run --suite holmes --corpus` names it.")]


@app.command()
def holmes(source: Source, target: Target = Path("probing/holmes")) -> int:
    """Import the probing sets of the public suite: its download, as a folder or zip archive."""
    from poolbench_corpora.probing.importing import import_suite

    with _fetched(source, target) as path:
        return _imported(import_suite(path, target), target)


@app.command()
def senteval(source: Source, target: Target = Path("probing/senteval")) -> int:
    """Import probing tasks of SentEval: one of its text files, a folder of them, or a zip archive."""
    from poolbench_corpora.probing.importing import import_senteval

    with _fetched(source, target) as path:
        return _imported(import_senteval(path, target), target)


@contextmanager
def _fetched(source: str, target: Path) -> Iterator[Path]:
    """Give the path of a source, which is downloaded first if it is an address."""
    from poolbench_driver.imports.scorers import downloaded, is_address

    if is_address(source):
        with downloaded(source, target) as path:
            yield path
    else:
        yield Path(source)


def _imported(done: Imported, target: Path) -> int:
    """Say what was imported and what was left out; return 1 if no set was."""
    for note in done.notes:
        typer.echo(str(note), err=True)
    typer.echo(f"{len(done.sets)} probing sets in {target}")
    if done.sets:
        typer.echo(f"probe them: poolbench-driver run --suite holmes --corpus {target}", err=True)
    return 0 if done.sets else 1


@app.command()
def stories(
    source: Annotated[Path, typer.Argument(help="File or folder with the columns story1, story2 and subject.")],
    target: Annotated[Path, typer.Argument(help="Folder of the stories.")] = Path("stories"),
    name: Annotated[str | None, typer.Option(help="What to call them; default: the name of the source.")] = None,
) -> None:
    """Import pairs of stories, so that `run --suite ce-bench --stories NAME` finds them."""
    from poolbench_corpora.stories import import_stories

    name = name or source.resolve().stem
    data = import_stories(source, target, name)
    for note in data.notes:
        typer.echo(str(note), err=True)
    typer.echo(f"{data.rows.num_rows} pairs of stories in {target / name}.jsonl")
    typer.echo(f"measure them: poolbench-driver run --suite ce-bench --stories {name}", err=True)


@app.command()
def saes(
    source: Annotated[Path, typer.Argument(help="Autoencoder, or folder of several, in any known format.")],
    target: Annotated[Path, typer.Argument(help="Folder of the autoencoders.")] = Path("saes"),
) -> int:
    """Import sparse autoencoders, as folders of one format."""
    from poolbench_driver.imports.saes import import_saes

    done = import_saes(source, target)
    for note in done.notes:
        typer.echo(note, err=True)
    typer.echo(f"{len(done.names)} autoencoders in {target}: {', '.join(done.names) or 'none'}")
    if done.names:
        typer.echo(f"measure them: poolbench-driver run --suite ce-bench --saes {target}", err=True)
    return 0 if done.names else 1


def _ask_label(question: str) -> str:
    typer.echo(question, err=True)
    return str(typer.prompt("label that means the concept", err=True))


def _blocks(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise typer.BadParameter(f"--layers {text}: use block indices such as 7,15,23, each once")
    return tuple(int(part) for part in parts)
