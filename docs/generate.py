"""Write the pages of this folder that come from the code or from data, such as strategies, bounds and settings.

`python docs/generate.py` writes them. `--check` names those that are out of date, with exit code 1.
"""

import argparse
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import yaml

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.results import AUDIT_SCHEMA, COSINE_SCHEMA, IDENTITY, RESULT_SCHEMA, RESULTS_VERSION, VOLATILE
from poolbench.pooling.registry import StrategySpec, strategies_of
from poolbench.pooling.signals import SIGNALS

FOLDER = Path(__file__).parent
NOTE = "<!-- Generated from the code by docs/generate.py: edit the code, then run `python docs/generate.py`. -->"
WIDTH = 100


def strategies() -> str:
    """Return the page with the strategies of both boards."""
    parts = [
        "# Pooling strategies",
        "A strategy turns the hidden states of one passage into one vector. A run uses the strategies of the "
        "card by default. Name others with `--strategies`, for example `--strategies card,S3_iti_probe`. "
        "Strategies marked *on request only* must always be named.",
        "A name may set parameters that are numbers: `W2_last_k:k=32`, with a colon before each parameter. Every "
        "combination is a strategy of its own, with its own row in results and boards. A parameter at its default "
        "is left out of the name.",
        "*Needs* says what a strategy reads beside the hidden states: the `annotation` of the pooler, the "
        "`labels`, all `states` of the training passages, or one of these signals per token:",
        "\n".join(f"- `{signal.name}`: {signal.summary}" for signal in SIGNALS.values()),
    ]
    for board, title in (("card", "Strategies of the card"), ("extended", "Strategies of the extended board")):
        found = strategies_of(board)
        parts += [f"## {title} ({len(found)})", _table(STRATEGY_HEAD, map(_strategy_row, found))]
    parts.append("[extending.md](extending.md#adding-a-strategy-concept-or-direction) explains how to add one.")
    return _page(parts)


STRATEGY_HEAD = ("id", "version", "family", "definition", "needs", "parameters", "notes")


def _strategy_row(spec: StrategySpec) -> Sequence[str]:
    params = ", ".join(f"{name} = {value}" for name, value in spec.params.items())
    notes = ["uses the concept's words"] * spec.uses_concept_lexicon + [
        "constant after a BOS"
    ] * spec.collapses_with_bos
    notes += ["on request only"] * spec.on_request
    said = "; ".join(notes)
    return f"`{spec.id}`", str(spec.version), spec.family, spec.summary, ", ".join(spec.needs), params, said


def concepts() -> str:
    """Return the page with the table of concepts and their definitions."""
    parts = [
        "# Concepts",
        "Each concept is one YAML file in `shared/src/poolbench/concepts/definitions/`. *Tokens* is the allowed "
        "length of a passage in tokens, and *domains* the smallest number of domains of a corpus of the published "
        "size. D3 compares with the two neighbours. Passages, vectors and texts of sensitive concepts are restricted "
        "([architecture.md](architecture.md#security)).",
        _table(CONCEPT_HEAD, map(_concept_row, CONCEPTS.all())),
        "## Definitions",
    ]
    for concept in CONCEPTS.all():
        parts += [f"### {concept.id}", f"{concept.definition.strip()} *Negatives:* {concept.construction.strip()}"]
        if concept.seed_words:
            parts.append("*Seed words:* " + ", ".join(concept.seed_words) + ".")
    return _page(parts)


CONCEPT_HEAD = (
    "id", "family", "matched pairs", "tokens", "domains", "distant neighbour", "close neighbour", "sensitive",
)  # fmt: skip


def _concept_row(concept: Concept) -> Sequence[str]:
    yes = {True: "yes", False: ""}
    low, high = concept.token_window
    return (
        f"`{concept.id}`",
        concept.family,
        yes[concept.matched_pairs],
        f"{low}-{high}",
        str(concept.min_source_domains),
        concept.neighbours.linguistically_distant,
        concept.neighbours.linguistically_close,
        yes[concept.sensitive],
    )


def results() -> str:
    """Return the page with the columns of results.parquet, cosines.parquet and audit.parquet."""
    texts = yaml.safe_load((FOLDER / "columns.yaml").read_text("utf-8"))
    columns, cosines, audit = (texts[f"{name}.parquet"] for name in ("results", "cosines", "audit"))
    rows = [(f"`{field.name}`", str(field.type), _role(field.name), columns[field.name]) for field in RESULT_SCHEMA]
    return _page(
        [
            "# Columns of results.parquet",
            f"The table has one row per figure; schema version {RESULTS_VERSION}. `cell_id` is a hash of the "
            "columns marked *identity*. Columns marked *volatile* differ between two runs of the same work. The "
            "results digest leaves them out, rounds numbers to 6 decimals and does not depend on the order of rows.",
            _table(("column", "type", "role", "holds"), rows),
            "## Columns of cosines.parquet",
            "The table has one row per pair of strategies, concept, layer and construction. Each pair appears once "
            "([metrics.md](metrics.md#directions-of-two-strategies)).",
            _table(
                ("column", "type", "holds"),
                [(f"`{field.name}`", str(field.type), cosines[field.name]) for field in COSINE_SCHEMA],
            ),
            "## Columns of audit.parquet",
            "The table has one row per concept and check of its passages ([metrics.md](metrics.md#confounds)). A "
            "concept that could not be audited has one row, without check.",
            _table(
                ("column", "type", "holds"),
                [(f"`{field.name}`", str(field.type), audit[field.name]) for field in AUDIT_SCHEMA],
            ),
        ]
    )


def _role(column: str) -> str:
    return "identity" if column in IDENTITY else "volatile" if column in VOLATILE else ""


def bounds() -> str:
    """Return the page with the allowed values of every field of every verb and task."""
    return _page(_beside("bounds_page").parts(_table))


def _beside(name: str) -> ModuleType:
    """Import a module of this folder, which is no package."""
    sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


PAGES: dict[str, Callable[[], str]] = {
    "architecture.md": lambda: _beside("marked_tables").architecture(FOLDER, _table),
    "observability.md": lambda: _beside("marked_tables").observability(FOLDER, _table),
    "operations/settings.md": lambda: _beside("marked_tables").operations(FOLDER, _table),
    "bounds.md": bounds,
    "strategies.md": strategies,
    "concepts.md": concepts,
    "results.md": results,
    "models.md": lambda: _page(_beside("models_page").parts(_table)),
    "results/published.md": lambda: _page(_beside("published_page").parts(_table)),
}


def outdated() -> list[str]:
    """Return the names of the pages that differ from the code."""
    return [name for name, page in PAGES.items() if not _same(FOLDER / name, page())]


def main() -> int:
    """Write or check every page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is out of date")
    if parser.parse_args().check:
        stale = outdated()
        for name in stale:
            print(f"docs/{name} is out of date: run `python docs/generate.py`", file=sys.stderr)
        return 1 if stale else 0
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")
    return 0


def _page(parts: Iterable[str]) -> str:
    title, *rest = parts
    return "\n\n".join([title, NOTE, *map(_wrap, rest)]) + "\n"


def _wrap(part: str) -> str:
    """Break the lines of a paragraph or list at `WIDTH`; headings and tables stay as they are."""
    if part.startswith(("#", "|")):
        return part
    return "\n".join(_fill(line, "  " * line.startswith("- ")) for line in part.split("\n"))


def _fill(line: str, indent: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _same(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
