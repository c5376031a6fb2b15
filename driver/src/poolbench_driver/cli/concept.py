"""concept: bring a concept of your own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench_driver.cli.run import names_of
from poolbench_driver.cli.tables import AsJson, print_data, print_table

if TYPE_CHECKING:
    from poolbench_corpora.own import Definition, Made
    from poolbench_driver.cluster.services import Services

app = typer.Typer(help="Bring a concept of your own: texts in two files become a concept.", no_args_is_help=True)

NameOrFile = Annotated[str, typer.Argument(help="Name of the concept, or a YAML file (concept init writes one).")]
File = Annotated[
    str | None, typer.Option(help="JSONL, CSV, Parquet or Arrow with a column `text`, or .txt with one text per line.")
]
Pairs = Annotated[str | None, typer.Option(help="The same with columns `positive` and `negative`.")]
Text = Annotated[str | None, typer.Option(help="What makes a passage positive.")]
Neighbours = Annotated[str | None, typer.Option(help="For D3: the distant concept, then the close one.")]
SeedWords = Annotated[str | None, typer.Option(help="Comma-separated words that no negative should contain.")]
Sensitive = Annotated[bool | None, typer.Option("--sensitive", help="Restrict passages, vectors and texts.")]
Licence = Annotated[str | None, typer.Option(help="Licence of texts that name none.")]
SplitSeed = Annotated[int | None, typer.Option(help="Seed of the split into train, test and scorer.")]


@app.command()
def ls(as_json: AsJson = False) -> None:
    """List the concepts, your own after the built-in ones."""
    from poolbench_driver.api.listing import KINDS
    from poolbench_driver.cli.listing import show_list

    show_list("concepts", KINDS["concepts"](Path("runs")), as_json=as_json, wide=False)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the concept: a-z, 0-9 and _.")],
    output: Annotated[Path | None, typer.Option(help="File to write; default: NAME.yaml.")] = None,
) -> None:
    """Write a YAML file to fill in."""
    from poolbench_corpora.own.definition import checked, template

    checked({"id": name}, "concept init")
    path = output or Path(f"{name}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(name))
    except FileExistsError:
        raise ConfigError(f"{path} exists already; remove it, or give another file with --output") from None
    typer.echo(str(path))
    typer.echo(f"fill it in, then: poolbench-driver concept check {path}", err=True)


def _with_texts(finish: Callable[[Made], int], verb: str) -> Callable[..., int]:
    """Return a command that reads the texts of a concept and passes it on.

    Where only the address of the services is known, the pooler reads the texts; `verb` is what it is asked for.
    """

    def command(
        name: NameOrFile,
        positives: File = None,
        negatives: File = None,
        pairs: Pairs = None,
        definition: Text = None,
        neighbours: Neighbours = None,
        seed_words: SeedWords = None,
        sensitive: Sensitive = None,
        licence: Licence = None,
        seed: SplitSeed = None,
        as_json: AsJson = False,
    ) -> int:
        concept_definition = _definition(name, locals())
        if (services := _remote()) is not None:
            return _sent(services, verb, concept_definition, as_json=as_json)
        concept = _made(concept_definition)
        _show(_facts(concept), as_json=as_json)
        return finish(concept)

    command.__doc__ = finish.__doc__
    return command


def _check(concept: Made) -> int:
    """Say what a run can measure with a concept's texts; exit code 1 if nothing. Nothing is stored."""
    return Exit.DONE if concept.usable else Exit.FAILURES


def _add(concept: Made) -> int:
    """Split and check a concept's texts, and register it: all services know it then."""
    from poolbench.library.concepts import Library
    from poolbench_driver.cluster.session import open_artifacts

    if not concept.usable:
        typer.echo("not registered: nothing can be measured with these texts", err=True)
        return Exit.FAILURES
    Library(open_artifacts().store).add(concept.concept, concept.passages)
    typer.echo(_registered(concept.concept.id), err=True)
    return Exit.DONE


app.command("check")(_with_texts(_check, "check_concept"))
app.command("add")(_with_texts(_add, "concepts"))


@app.command()
def rm(name: Annotated[str, typer.Argument(help="Name of a registered concept.")]) -> None:
    """Remove a registered concept; results of runs stay."""
    from poolbench.library.concepts import Library
    from poolbench_driver.cluster.session import open_artifacts

    if (services := _remote()) is not None:
        services.delete("pooler", f"concepts/{quote(name, safe='')}")
    else:
        Library(open_artifacts().store).remove(name)
    typer.echo(f"{name} is removed", err=True)


_LISTS = ("neighbours", "seed_words")


def _remote() -> Services | None:
    """Return the services of a cluster whose object store is not known here; None for any other, and for none."""
    from poolbench_driver.cluster.services import open_services

    with suppress(ConfigError):
        services = open_services()
        return None if services.settings.store_uri else services
    return None


def _sent(services: Services, verb: str, definition: Definition, *, as_json: bool) -> int:
    """Send a definition and its files to the pooler, and show what it found; exit code 1 if nothing is usable."""
    from poolbench_corpora.own.definition import request_of

    answer = services.post("pooler", verb, request_of(definition))
    _show({name: answer[name] for name in ("id", "revision", "usable", "splits", "remarks")}, as_json=as_json)
    if answer["registered"]:
        typer.echo(_registered(answer["id"]), err=True)
    return Exit.DONE if answer["usable"] else Exit.FAILURES


def _registered(name: str) -> str:
    return f"registered; measure it: poolbench-driver run --concepts {name}"


def _definition(name: str, flags: dict[str, Any]) -> Definition:
    """Return the definition of a name or YAML file; flags that were given replace what the file says."""
    from poolbench_corpora.own import Definition, read_definition
    from poolbench_corpora.own.definition import checked

    fields = Definition.model_fields.keys() - {"id"}
    flag_values = {flag: value for flag, value in flags.items() if value is not None and flag in fields}
    flag_values |= {flag: names_of(flag_values[flag]) or [] for flag in _LISTS if flag in flag_values}
    base = read_definition(Path(name)) if name.endswith((".yaml", ".yml")) else None
    values = base.model_dump(mode="json") if base else {"id": name}
    return checked({**values, **flag_values}, f"concept {name}")


def _made(definition: Definition) -> Made:
    from poolbench_corpora.own import make_concept
    from poolbench_driver.cluster.session import open_artifacts

    with suppress(ConfigError):  # without a cluster, neighbours can only be built-in concepts
        open_artifacts()
    return make_concept(definition, definition.files())


def _facts(concept: Made) -> dict[str, Any]:
    """Return what a check says about a concept, as the pooler does, and what a run of it will cost."""
    from poolbench_corpora.own.forecast import forecast

    messages = [*concept.remarks, *(forecast(concept) if concept.usable else ())]
    remarks = [{"level": remark.level, "message": remark.message} for remark in messages]
    facts = {"id": concept.concept.id, "revision": concept.concept.corpus, "usable": concept.usable}
    return {**facts, "splits": [dict(row) for row in concept.sizes()], "remarks": remarks}


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_data(facts)
        return
    sizes = facts["splits"]
    print_table(sizes, list(sizes[0]), f"concept {facts['id']}, revision {facts['revision']}")
    for remark in facts["remarks"]:
        typer.echo(f"{remark['level']}: {remark['message']}")
