"""The page of results on real text: yields, what the figures show and what they cannot, and all tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

import pyarrow.parquet as pq
from recipes.real_text.findings import SATURATED, Findings, findings

from poolbench.corpora.io import read_concept
from poolbench_driver.report.markdown import leaderboard_markdown
from poolbench_driver.rundir import RunFolder

_CANNOT = (
    "**Labels come from rules**, not from readers. A figure says how well a strategy finds what the rule finds.",
    "**The model is small** (the demo model). Which strategy is best for a large model does not follow.",
    "**A corpus may hold more than its concept.** Where the verdict below says `confounded`, length, words or domain "
    "alone separate the classes, and a high D1 can come from these. `d1.excess_over_confound` is what is left.",
)


def page(folder: RunFolder, corpus: Path, lacking: Mapping[str, str]) -> str:
    """Return the page in Markdown.

    Args:
        folder: The finished run.
        corpus: Folder of the corpora.
        lacking: Why a concept was not built, by concept.
    """
    rows = pq.read_table(folder.file("results.parquet")).to_pylist()
    audit = pq.read_table(folder.file("audit.parquet")).to_pylist()
    concepts = sorted({row["concept"] for row in audit})
    parts = [
        "# Real text, demo model",
        _wrapped(
            "All concepts that the real-text archives serve ([how](../runs.md#corpora)), with their yields, the audit "
            "of confounds and a run of D1 to D3. One command builds, audits, measures and writes this page:"
        ),
        "```console\n$ make real-text\n```",
        "## Yields",
        _table(("concept", "train", "test", "scorer", "domains"), _yields(corpus, concepts)),
        _items(f"{name} was not built: {reason}" for name, reason in sorted(lacking.items())) or "All were built.",
        "## What it shows",
        *_shown(findings(rows, audit)),
        "## What it cannot show",
        _items(_CANNOT),
        "## The run",
        # One title per page: the tables come one level below.
        re.sub(r"\n*^(#+) ", r"\n\n#\1 ", leaderboard_markdown(folder), flags=re.MULTILINE),
    ]
    return "\n\n".join(parts) + "\n"


def _yields(corpus: Path, concepts: Iterable[str]) -> list[list[str]]:
    lines = []
    for name in concepts:
        passages = read_concept(corpus, name)
        counts = Counter(passages["split"].to_pylist())
        domains = {domain for domain in passages["domain"].to_pylist() if domain}
        lines.append([name, *(str(counts[split]) for split in ("train", "test", "scorer")), str(len(domains))])
    return lines


def _shown(found: Findings) -> list[str]:
    agreement = (
        "Too few of the others rank the strategies to compare their orders."
        if found.agreement is None
        else f"Among the others, the orders of strategies on two concepts agree with a Kendall tau of "
        f"{found.agreement:z.2f} in the mean."
    )
    items = [
        f"Concepts on which half of the strategies have a D1 of {SATURATED} or more hardly rank strategies. They are "
        f"{len(found.saturated)} of {len(found.best)}: {_listed(found.saturated)}. {agreement}",
        f"Verdicts of the audit: {', '.join(f'{count} {name}' for name, count in sorted(found.verdicts.items()))}.",
        f"{len(found.gated)} of {len(found.best)} scorers pass their gate: {_listed(found.gated)}. D2 and D3 have "
        "values for these only.",
    ]
    header = ("concept", "best strategy", "its D1", "A1_mean", "P1_last_token", "best beyond the confound")
    return [_items(items), _table(header, found.lines())]


def _wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most 100 characters."""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _items(texts: Iterable[str]) -> str:
    return "\n".join(_wrapped(f"- {text}", "  ") for text in texts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])
