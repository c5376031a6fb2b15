"""Make the parts of this folder's pages that come from the code or from data, such as strategies, bounds and settings.

Such a part stands in its page between the marks `<!-- name -->` and `<!-- end of name -->`; everything else is written
by hand. `python docs/generate.py` writes the parts. `--check` names the pages that are out of date, with exit code 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.results import AUDIT_SCHEMA, COSINE_SCHEMA, IDENTITY, RESULT_SCHEMA, VOLATILE
from poolbench.pooling.registry import StrategySpec, strategies_of
from poolbench.pooling.signals import SIGNALS
from poolbench.settings import GateSettings, Settings, SteererSettings
from poolbench.steps import SERVICE_STEPS
from poolbench.telemetry.catalog import INSTRUMENTS
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pages.text import paragraph, schema, table
from poolbench_driver.vectors.card import VectorCard

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
import published_page  # noqa: E402

_YES = {True: "yes", False: ""}
#: The construction of negatives that the page on concepts states once.
_INDEPENDENT = "Independent passages: positives and negatives come from different documents."
_OPERATIONS = ("add", "add_preserving_norm", "clamp", "erase")


def _board(name: str) -> str:
    """Return the heading of a board, with the number of its strategies, and their table."""
    specs = strategies_of(name)
    title = {"card": "Strategies of the card", "extended": "Strategies of the extended board"}[name]
    head = ("id", "version", "family", "definition", "needs", "parameters", "notes")
    return f"## {title} ({len(specs)})\n\n{table(head, map(_strategy_row, specs))}"


def _strategy_row(spec: StrategySpec) -> Sequence[str]:
    params = ", ".join(f"{name} = {value}" for name, value in spec.params.items())
    notes = ["uses the concept's words"] * spec.uses_concept_lexicon + [
        "constant after a BOS"
    ] * spec.collapses_with_bos
    notes += ["on request only"] * spec.on_request
    remarks = "; ".join(notes)
    return f"`{spec.id}`", str(spec.version), spec.family, spec.summary, ", ".join(spec.needs), params, remarks


def _concept_row(concept: Concept) -> Sequence[str]:
    low, high = concept.token_window
    return (
        f"`{concept.id}`",
        concept.family,
        _YES[concept.matched_pairs],
        f"{low}-{high}",
        str(concept.min_source_domains),
        concept.neighbours.linguistically_distant,
        concept.neighbours.linguistically_close,
        _YES[concept.sensitive],
    )


def _definitions() -> Iterator[str]:
    for concept in CONCEPTS.all():
        seeds = f" *Seed words:* {', '.join(concept.seed_words)}." if concept.seed_words else ""
        construction = concept.construction.strip()
        negatives = "" if construction == _INDEPENDENT else f" *Negatives:* {construction}"
        yield paragraph(f"- **{concept.id}**: {concept.definition.strip()}{negatives}{seeds}", "  ")


def _columns(file: str, schema: pa.Schema, role: Callable[[str], str] | None = None) -> str:
    """Return the table of the columns of a file of results; a column without a text in columns.yaml is a KeyError."""
    texts = yaml.safe_load((FOLDER / "columns.yaml").read_text("utf-8"))[file]
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
            f"`{step.kind}`",
            str(step.version),
            ", ".join(f"`{role}`" for role in step.inputs),
            ", ".join(f"`{output.role}`" for output in step.outputs),
            step.label,
            step.unit,
            step.summary,
        )
        for step in SERVICE_STEPS.values()
    )
    return table(("kind", "version", "inputs", "outputs", "shown as", "work in", "notes"), rows)


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
    columns = ("id", "summary", "reference", "dataset", "revision", "licence", "citation")
    suites = sorted(SUITES.all(), key=lambda suite: suite.id)
    lines = ([f"`{suite.id}`", *(getattr(suite, name) for name in columns[1:])] for suite in suites)
    return table(columns, lines)


def _settings(*models: type[Settings]) -> str:
    """Return a table of variables; those of one meaning and default share a line."""
    lines: dict[tuple[str, str], list[str]] = {}
    for variable, meaning, default in (row for model in models for row in _settings_of(model)):
        lines.setdefault((meaning, default), []).append(variable)
    return table(("variable", "meaning", "default"), ((", ".join(names), *rest) for rest, names in lines.items()))


def _settings_of(model: type[Settings]) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        unset = extra["unset"] if isinstance(extra, dict) else _default(field.default)
        yield f"`{model.variable(name)}`", str(field.description), str(unset)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else f"`{value}`"


def _checked_models() -> dict[str, str]:
    """Return the tables of the architectures that were checked, from models.json, which `make test-models` writes."""
    measured = json.loads((FOLDER / "models.json").read_text("utf-8"))

    def figures(heads: Sequence[str], names: Sequence[str]) -> str:
        """Return one line per architecture: of its kinds of weights, the largest difference."""
        rows: dict[str, list[float | None]] = {}
        for key, measures in measured.items():
            if measures.keys() & set(names):
                row = rows.setdefault(key.split("/")[0], [None] * len(names))
                for place, name in enumerate(names):
                    row[place] = max((x for x in (row[place], measures.get(name)) if x is not None), default=None)
        cells = ((name, *("-" if x is None else f"{x:.1e}" for x in row)) for name, row in rows.items())
        return table(("architecture", *heads), cells)

    refused = [
        (key.removesuffix("/random").replace("/", ", "), service, " ".join(message.split()))
        for key, measures in measured.items()
        for service in ("extractor", "steerer")
        if (message := measures.get(f"{service}_refuses"))
    ]
    in_steerer = ("self_test", "rounding", *_OPERATIONS)
    return {
        "extractor": figures(("hidden states", "attention"), ("extractor_states", "extractor_inflow")),
        "encoders": figures(("hidden states",), ("encoder_states",)),
        "steerer": figures(
            ("self-test", "rounding", *(f"`{operation}`" for operation in _OPERATIONS)),
            [f"steerer_{name}" for name in in_steerer],
        ),
        "refused": table(("architecture", "service", "message"), refused),
    }


#: The parts of each page, by the name of their marks.
PAGES: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "architecture.md": lambda: {"tasks": _tasks()},
    "observability.md": lambda: {"metrics": _metrics()},
    "operations/settings.md": lambda: {
        "settings": _settings(*(model for model in Settings.models if model not in (GateSettings, SteererSettings))),
        "settings of the steerer": _settings(SteererSettings),
        "settings of the gate": _settings(GateSettings),
    },
    "strategies.md": lambda: {
        "signals": "\n".join(f"- `{signal.name}`: {signal.summary}" for signal in SIGNALS.values()),
        "card": _board("card"),
        "extended board": _board("extended"),
    },
    "concepts.md": lambda: {
        "concepts": table(
            ("id", "family", "matched pairs", "tokens", "domains", "distant neighbour", "close neighbour", "sensitive"),
            map(_concept_row, CONCEPTS.all()),
        ),
        "definitions": "\n".join(_definitions()),
    },
    "results.md": lambda: {
        "results": _columns("results.parquet", RESULT_SCHEMA, _role),
        "cosines": _columns("cosines.parquet", COSINE_SCHEMA),
        "audit": _columns("audit.parquet", AUDIT_SCHEMA),
    },
    "suites.md": lambda: {"suites": _suites()},
    "models.md": _checked_models,
    "results/published.md": published_page.parts,
}


#: Files that are made as a whole.
FILES: Mapping[str, Callable[[], str]] = {
    "view.schema.json": lambda: json.dumps(schema(), indent=1) + "\n",
    "vector-card.schema.json": lambda: json.dumps(VectorCard.model_json_schema(), indent=1) + "\n",
}


def made_again(name: str) -> str:
    """Return a page with its parts made again, or a file."""
    if name in FILES:
        return FILES[name]()
    page = (FOLDER / name).read_text("utf-8")
    for part, text in PAGES[name]().items():
        before, rest = page.split(f"<!-- {part} -->")
        after = rest.split(f"<!-- end of {part} -->")[1]
        page = f"{before}<!-- {part} -->\n\n{text}\n\n<!-- end of {part} -->{after}"
    return page


def outdated() -> list[str]:
    """Return the names of the pages that differ from the code."""
    return [name for name in [*PAGES, *FILES] if (FOLDER / name).read_text("utf-8") != made_again(name)]


def main() -> int:
    """Write or check every page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is out of date")
    if parser.parse_args().check:
        stale = outdated()
        for name in stale:
            print(f"docs/{name} is out of date: run `python docs/generate.py`", file=sys.stderr)
        return 1 if stale else 0
    for name in [*PAGES, *FILES]:
        (FOLDER / name).write_text(made_again(name), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
