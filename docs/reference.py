"""What the documentation has from the code and from data: parts of pages, pages of the reference, and JSON schemas."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import benchmark_tables
import published_page
import pyarrow as pa
import typer
import yaml

import poolbench_driver
from poolbench.contracts.wire import HEALTH_PATH
from poolbench.errors import PoolbenchError
from poolbench.http.api import build_api
from poolbench.settings import Settings
from poolbench.steps import SERVICE_STEPS
from poolbench.telemetry.catalog import INSTRUMENTS
from poolbench_driver.cli import app
from poolbench_driver.cli.help import PROGRAM, CommandGroup
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pages.text import items, paragraph, schema, table
from poolbench_driver.results import AUDIT_SCHEMA, COSINE_SCHEMA, IDENTITY, RESULT_SCHEMA, VOLATILE
from poolbench_driver.sharing.submission import schema as submission_schema
from poolbench_driver.vectors.card import VectorCard
from poolbench_steerer.plugin.architectures import ARCHITECTURES

FOLDER = Path(__file__).parent
SERVICES = ("extractor", "pooler", "prober", "steerer", "scorer")
#: Whose fields are the settings of a run.
SETTINGS = ("poolbench_driver.config", "poolbench.config.budgets", "poolbench.config.base")
#: Columns of the table of decoders, and the measures that they hold.
_DECODERS = {
    "hidden states": "extractor_states",
    "attention": "extractor_inflow",
    "self-test": "steerer_self_test",
    "rounding": "steerer_rounding",
    "steered": "steered",
}


def pages(public: Sequence[str]) -> dict[str, str]:
    """Return the pages of the reference by name."""
    driver = [f"poolbench_driver.{name}" for name in poolbench_driver.__all__]
    return {
        "python": python_page("Python", driver),
        "plugins": python_page("Names for packages of your own", [name for name in public if name not in driver]),
        "settings": python_page("Settings of a run", SETTINGS),
        "commands": "\n\n".join(["# Commands", *command_help(typer.main.get_command(app), PROGRAM)]),
        "http": "\n\n".join(["# HTTP", *(part for name in SERVICES for part in http_verbs(name))]),
        "errors": errors_page(),
    }


def python_page(title: str, names: Sequence[str]) -> str:
    """Return a page of names, which mkdocstrings fills."""
    return "\n\n".join([f"# {title}", *(f"::: {name}" for name in names)]) + "\n"


def command_help(command: Any, name: str) -> Iterator[str]:
    """Yield the help of a command, and of those below it."""
    context = command.make_context(name, [], resilient_parsing=True)
    if not isinstance(command, CommandGroup) or name == PROGRAM:
        yield f"## `{name}`"
        yield f"```text\n{context.get_help()}\n```"
        for key, prints in _texts("commands.yaml").items():
            if f"{PROGRAM} {key}".partition(" --")[0] == name:
                yield f"`{key} --json`: {prints['json']}; rows of `--csv`: {prints['csv']}."
    if isinstance(command, CommandGroup):
        for sub in command.list_commands(context):
            yield from command_help(command.get_command(context, sub), f"{name} {sub}")


def http_verbs(service: str) -> Iterator[str]:
    """Yield the verbs of a service with the fields of their bodies."""
    document = build_api(import_module(f"poolbench_{service}.service").create(), "unused").openapi()
    yield f"## {service}"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path == HEALTH_PATH and service != SERVICES[0]:
                continue
            yield f"### `{method.upper()} /{service}{path}`"
            yield plain(operation.get("description") or operation["summary"])
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                yield from body_fields(media, content, document)
            answers = [(status, plain(answer["description"])) for status, answer in operation["responses"].items()]
            yield table(("answer", "when"), answers)


def body_fields(media: str, content: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of the fields of a body, where it has any."""
    schema = resolved(content.get("schema", {}), document)
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", kind_of(field, document), "yes" if name in required else "", plain(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    yield f"Body: `{media}`" + ("" if rows else ", as the text above says.")
    if rows:
        yield table(
            ("field", "type", "required", "meaning"), [[" ".join(cell.split()) for cell in row] for row in rows]
        )


def resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a reference of a schema leads to."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def plain(text: str) -> str:
    """Return a text of the code in one line, in which Markdown takes no shape such as [T][2] for a link."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if place % 2 else part.replace("[", "\\[") for place, part in enumerate(parts))


def kind_of(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind_of(option, document) for option in options))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}), document)}"
    return str(schema.get("type") or schema.get("$ref", "any").rpartition("/")[2])


def errors_page() -> str:
    """Return the table of error codes, their HTTP status, and what they mean."""
    rows = defaultdict(list)
    classes = [PoolbenchError]
    for error in classes:  # grows
        classes += error.__subclasses__()
        text = plain(cleandoc(error.__doc__ or "").partition("\n\n")[0])
        rows[str(error.code), str(error.http_status)].append(text)
    lines = [(f"`{code}`", status, " ".join(dict.fromkeys(texts))) for (code, status), texts in sorted(rows.items())]
    head = "Commands print an error as one line. Services answer with `error.code` and `error.message`."
    return f"# Error codes\n\n{head}\n\n{table(('code', 'HTTP status', 'meaning'), lines)}\n"


def _columns(file: str, schema: pa.Schema, role: Callable[[str], str] | None = None) -> str:
    """Return the table of the columns of a file of results; a column without a text in columns.yaml is a KeyError."""
    texts = _texts("columns.yaml")[file]
    head = ("column", "type", *(["role"] if role else []), "holds")
    return table(
        head,
        (
            [f"`{field.name}`", str(field.type), *([role(field.name)] if role else []), texts[field.name]]
            for field in schema
        ),
    )


def _role(column: str) -> str:
    return "identity" if column in IDENTITY else "volatile" if column in VOLATILE else ""


def _tasks() -> str:
    rows = (
        (
            f"`{step.kind}`, version {step.version}",
            ", ".join(f"`{role}`" for role in step.inputs),
            ", ".join(f"`{output.role}`" for output in step.outputs),
            f"*{step.label}*, in {step.unit}: {step.summary}",
        )
        for step in SERVICE_STEPS.values()
    )
    return table(("kind", "inputs", "outputs", "name on screen, what its work is counted in, notes"), rows)


def _metrics() -> str:
    rows = (
        (
            f"`{instrument.exported}`",
            instrument.kind,
            instrument.unit,
            ", ".join(f"`{label.name}`" for label in instrument.labels),
            instrument.summary,
        )
        for instrument in INSTRUMENTS
    )
    return table(("name in Prometheus", "kind", "unit", "labels", "meaning"), rows)


def _suites() -> str:
    """Return the suites with the data of their references."""
    lines = []
    for suite in sorted(SUITES.all(), key=lambda suite: suite.id):
        names = ("reference", "dataset", "revision", "licence", "citation")
        facts = [f"*{name}:* {fact}" for name in names if (fact := getattr(suite, name))]
        lines.append(f"`{suite.id}`: {suite.summary} ({'; '.join(facts)})")
    return items(lines)


def _settings() -> str:
    rows = []
    for model, name, field in ((owner, *item) for owner in Settings.models for item in owner.model_fields.items()):
        extra = field.json_schema_extra
        unset = extra["unset"] if isinstance(extra, dict) else _default(field.default)
        rows.append((f"`{model.variable(name)}`", str(field.description), str(unset)))
    return table(("variable", "meaning", "default"), rows)


def _texts(file: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / file).read_text("utf-8"))


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else f"`{value}`"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _models() -> dict[str, str]:
    """Return what models.json, which `make test-models` writes, says of each architecture: the largest differences."""
    refused, largest = [], defaultdict[str, dict[str, float]](dict)
    for key, measures in json.loads((FOLDER / "models.json").read_text("utf-8")).items():
        name = key.split("/")[0]  # the model type of a decoder
        architecture = ARCHITECTURES[name].title if name in ARCHITECTURES else name
        for measure, value in measures.items():
            service, _, figure = measure.partition("_")
            if figure == "refuses":
                refused.append(f"{architecture}, {service}: {' '.join(value.split())}")
            else:  # four operations are one column
                column = measure if measure in _DECODERS.values() or service == "encoder" else "steered"
                largest[architecture][column] = max(value, largest[architecture].get(column, 0))
    encoders = [f"{name} ({row['encoder_states']:.1e})" for name, row in largest.items() if "encoder_states" in row]
    decoders = (
        (title, block, *(_figure(largest[title].get(column)) for column in _DECODERS.values()))
        for title, block, _ in sorted(ARCHITECTURES.values(), key=lambda row: row.title.casefold())
    )
    refusals = paragraph(f"Refused: {'; '.join(refused)}.")
    return {
        "decoders": f"{table(('architecture', 'block', *_DECODERS), decoders)}\n\n{refusals}",
        "encoders": paragraph(f"{'; '.join(encoders)}."),
    }


Parts = Mapping[str, Callable[[], Mapping[str, str]]]

#: Parts that the repository holds too, by page and by the name of their marks.
PAGES: Parts = {
    "concepts.md": benchmark_tables.concept_parts,
    "models.md": _models,
    "strategies.md": benchmark_tables.strategy_parts,
    "results/published.md": published_page.parts,
}

#: Parts that only the site has: the page in the repository says there where else to look.
TABLES: Parts = {
    "architecture.md": lambda: {"tasks": _tasks()},
    "observability.md": lambda: {"metrics": _metrics()},
    "operations/settings.md": lambda: {"settings": _settings()},
    "results.md": lambda: {
        "results": _columns("results.parquet", RESULT_SCHEMA, _role),
        "cosines": _columns("cosines.parquet", COSINE_SCHEMA),
        "audit": _columns("audit.parquet", AUDIT_SCHEMA),
    },
    "suites.md": lambda: {"suites": _suites()},
}

#: Files that are made as a whole.
FILES: Mapping[str, Callable[[], str]] = {
    "submission.schema.json": lambda: json.dumps(submission_schema(), indent=1) + "\n",
    "view.schema.json": lambda: json.dumps(schema(), indent=1) + "\n",
    "vector-card.schema.json": lambda: json.dumps(VectorCard.model_json_schema(), indent=1) + "\n",
}
