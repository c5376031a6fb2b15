"""init and config check: files with the settings of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.cli.suite_options import reads
from poolbench_driver.cli.tables import AsJson, print_data

app = typer.Typer(help="Check files with the settings of a run.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="YAML file with the settings of a run.")]


@app.callback()
def _group() -> None:
    """Keep `check` a command of a group, although it is the only one."""


@app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Check a file of settings, without a cluster: every name and every value. A wrong one ends with exit code 2."""
    from poolbench_driver.contract.load import load_run_config
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.records import run_id

    config = load_run_config(file, {})
    SUITES.get(config.suite).load().check(config)
    facts = {"file": str(file), "suite": config.suite, "model": config.model, "budget": config.budget.name}
    facts |= {"run": run_id(config), "config_hash": config.config_hash()}
    if as_json:
        print_data({**facts, "settings": config.model_dump(mode="json")}, [facts])
    else:
        typer.echo(f"{file}: run {facts['run']} of the suite {config.suite} on {config.model}, {facts['budget']}")


def init(
    file: File = Path("run.yaml"),
    template: Annotated[
        str | None, typer.Option(help="Ask nothing: a preset (demo, small, card, full), or a suite of `ls suites`.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Preset id, folder or Hugging Face id.")] = None,
) -> None:
    """Write a commented file of settings after five questions, or from a template, and the JSON schema for editors."""
    import yaml

    from poolbench_driver.contract.load import load_run_config
    from poolbench_driver.contract.registry import SUITES

    settings = _of_template(template, model) if template else _of_answers(model)
    config = load_run_config(None, settings)
    SUITES.get(config.suite).load().check(config)
    schema = file.with_suffix(".schema.json")
    fields = config.model_json_schema()["properties"]
    lines = [f"# yaml-language-server: $schema={schema.name}"]
    lines += [f"# Check it: poolbench-driver config check {file}; measure: poolbench-driver run {file}"]
    lines += [
        "# A setting behind # holds anyway; take the # away to change it.",
        "",
        yaml.safe_dump({"preset": settings["preset"]}).strip(),
    ]
    for name, value in config.model_dump(mode="json").items():
        lines += ["", *_described(fields[name].get("description", ""))]
        text = yaml.safe_dump({name: settings.get(name, value)}, sort_keys=False).strip()
        lines += text.splitlines() if name in settings else [f"#{line}" for line in text.splitlines()]
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write("\n".join(lines) + "\n")
    except FileExistsError:
        raise ConfigError(f"{file} exists already; remove it, or name another file") from None
    schema.write_text(json.dumps(schema_of(config.suite), indent=1) + "\n", "utf-8")
    typer.echo(str(file))
    typer.echo(f"then: poolbench-driver run {file} --dry-run", err=True)


def schema_of(suite_id: str) -> dict[str, Any]:
    """Return the JSON schema of a file of settings of a suite: any part of them, and what stands beside them."""
    from poolbench.config import BUDGETS
    from poolbench_driver.contract.registry import SUITES

    schema = SUITES.get(suite_id).config.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("required", None)  # a file says what differs
    preset = {"enum": list(BUDGETS)}
    schema["properties"] |= {
        "preset": {**preset, "description": "Settings to start from."},
        "limit": {"type": "integer", "description": "At most this many passages per concept (train and test)."},
        "budget": {"anyOf": [preset, schema["properties"]["budget"]]},
    }
    return schema


def _described(text: str) -> Iterator[str]:
    if text := " ".join(text.split()):
        yield from fill(text, 98, initial_indent="# ", subsequent_indent="# ").splitlines()


def _of_template(name: str, model: str | None) -> dict[str, Any]:
    """Return the settings of a preset, or of a suite with the preset that runs start from."""
    from poolbench.config import BUDGETS
    from poolbench_driver.config import DEFAULT_SUITE
    from poolbench_driver.contract.load import default_preset
    from poolbench_driver.contract.registry import SUITES

    suites = [suite.id for suite in SUITES.all()]
    if name not in (*BUDGETS, *suites):
        raise UnknownNameError("template", name, [*BUDGETS, *suites])
    of_model = {"model": model} if model else {}
    at = (
        {"suite": DEFAULT_SUITE, "preset": name}
        if name in BUDGETS
        else {"suite": name, "preset": default_preset(of_model)}
    )
    return at | of_model


def _of_answers(model: str | None) -> dict[str, Any]:
    """Ask what to measure; return it as settings. Raise ConfigError without a terminal."""
    from poolbench.config import BUDGETS
    from poolbench_driver.cli.run import names_of
    from poolbench_driver.config import DEFAULT_SUITE
    from poolbench_driver.contract.load import default_preset, started_from
    from poolbench_driver.contract.registry import SUITES

    if not _is_asked():
        raise ConfigError("questions need a terminal; give --template, such as --template demo")
    suite = SUITES.get(_answer("What to measure", DEFAULT_SUITE, [suite.id for suite in SUITES.all()]))
    settings: dict[str, Any] = {"suite": suite.id}
    settings["model"] = _answer("Model: preset id, folder or Hugging Face id", model or "demo")
    settings["preset"] = _answer("How much", default_preset(settings), list(BUDGETS))
    started = started_from(suite, settings)
    if reads(suite, "concepts"):
        concepts = _answer("Concepts, with commas, or all", ",".join(started.get("concepts", ["all"])))
        corpus = _answer("Passages: planted, real or a folder", _source(started))
        return settings | {"concepts": names_of(concepts), "corpus": {"source": corpus}}
    settings["protocol"] = _answer("Definitions", "corrected", ["corrected", "published"])
    return settings | {"seed": int(_answer("Seed", "0"))}


def _is_asked() -> bool:
    """Return whether questions can be seen and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _source(settings: Mapping[str, Any]) -> str:
    return str(settings.get("corpus", {}).get("source", "planted"))


def _answer(question: str, default: str, allowed: Sequence[str] = ()) -> str:
    """Return the answer to a question, which is asked again after a wrong one."""

    def checked(answer: str) -> str:
        if allowed and answer not in allowed:
            raise typer.BadParameter(str(UnknownNameError("answer", answer, allowed)))
        return answer

    choice = f" ({', '.join(allowed)})" if allowed else ""
    return str(typer.prompt(question + choice, default=default, value_proc=checked, err=True))
