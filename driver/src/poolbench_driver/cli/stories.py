"""stories: sets of stories of your own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import InputError

if TYPE_CHECKING:
    from poolbench_driver.queries.story_requests import StoryFile

app = typer.Typer(help="Make pairs of stories about subjects.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `make` a command of a group, although it is the only one."""


@app.command()
def make(
    endpoint: Annotated[str, typer.Option(help="Base of an OpenAI-compatible API, such as https://host/v1.")],
    model: Annotated[str, typer.Option(help="Model of the endpoint that writes the stories.")],
    subjects: Annotated[list[str] | None, typer.Argument(help="Subjects, such as winter.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="More of them: a table with 'text', or plain .txt, one a line.")
    ] = None,
    name: Annotated[str, typer.Option(help="What to call the set; an existing one is continued.")] = "made",
    target: Annotated[Path, typer.Option(help="Folder of the stories.")] = Path("stories"),
    key_env: Annotated[str, typer.Option(help="Environment variable that holds the key.")] = "OPENAI_API_KEY",
    completions: Annotated[
        bool, typer.Option("--completions", help="Send prompts to /completions: for a model without a chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 1000,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Of sampling.")] = 1.0,
    tries: Annotated[int, typer.Option(min=1, max=20, help="Requests for one pair at most.")] = 3,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Seconds of one request.")] = 120.0,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Requests at the same time.")] = 4,
) -> int:
    """Ask a language model for pairs of stories, three per subject, with marked words; the same command continues."""
    from rich.console import Console
    from rich.progress import Progress

    from poolbench_corpora.stories.catalog import checked_name
    from poolbench_driver.queries.endpoint import EndpointModel
    from poolbench_driver.queries.story_requests import StoryFile, ask_for_stories
    from poolbench_driver.queries.texts import read_texts

    listed = [*(subjects or []), *(line.text for line in (read_texts(input_) if input_ is not None else []))]
    names = list(dict.fromkeys(subject.strip() for subject in listed if subject.strip()))
    if not names:
        raise InputError("no subject: name some, such as winter, or give --input FILE")
    _refuse_sensitive(names)
    file = StoryFile(target / f"{checked_name(name)}.jsonl")
    writer = EndpointModel(
        endpoint, model, os.environ.get(key_env), completions, max_tokens, temperature, tries, timeout
    )
    prompts = file.prompts(names)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("pairs of stories", total=len(prompts))
        ask_for_stories(file, writer, prompts, parallel, lambda: progress.advance(task))
    return _show_end(file, names, writer.reason)


def _refuse_sensitive(subjects: list[str]) -> None:
    """Raise RestrictedError for subjects that are sensitive concepts: pages show stories."""
    from poolbench.concepts import CONCEPTS, refuse_sensitive

    concepts = {concept.id for concept in CONCEPTS.all()}
    refuse_sensitive(subject for subject in subjects if subject in concepts)


def _show_end(file: StoryFile, subjects: list[str], reason: str) -> int:
    """Say what was written and what failed; return 1 if pairs of these subjects are missing."""
    missing = file.prompts(subjects)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(file.counts.items()))
    typer.echo(f"{len(file.written)} pairs of stories in {file.path}; answers of all commands: {counted or 'none'}")
    for prompt in missing:
        answers = ", ".join(file.failed.get(prompt[:2], ()))
        typer.echo(f"no stories of {prompt.subject} ({prompt.name}): {answers}", err=True)
    if reason:
        typer.echo(f"the endpoint refused a request: {reason}", err=True)
    if missing:
        typer.echo(f"{len(missing)} pairs are missing; the same command asks for them again", err=True)
    if file.written:
        typer.echo(f"measure them: poolbench-driver run --stories {file.path.stem}, with --suite and --saes", err=True)
    return Exit.FAILURES if missing else Exit.DONE
