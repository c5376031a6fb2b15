"""The page of results on real text: passages, what the figures show and what they cannot, and all tables."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pyarrow.parquet as pq
from recipes.real_text.answers import moved_by_sinks, published_orders
from recipes.real_text.findings import SATURATED, Findings, findings
from recipes.real_text.pairs import Judged

from poolbench.config import REAL_CORPUS, asset_path
from poolbench.contracts import Row
from poolbench_corpora.io import read_concept
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.pages.text import paragraph, table
from poolbench_driver.records import Run
from poolbench_driver.report import leaderboard_markdown
from poolbench_driver.suites.poolbench.report.answer import SEPARATION, answers, best_of

_CANNOT = (
    "**Labels come from rules**, not from readers. A figure says how well a strategy finds what the rule finds.",
    "**The model is small**, and its weights were dequantised from 4 bits: it is not the hub's "
    "`HuggingFaceTB/SmolLM2-135M-Instruct`. Which strategy is best for a large model does not follow.",
    "**A corpus may hold more than its concept.** Where the verdict says `confounded`, length, words or domain "
    "alone separate the classes, and a high D1 can come from these. `d1.excess_over_confound` is what is left.",
)

#: The tables of the run that the page shows; the others have a row for each strategy, by concept or metric.
_RUN_SECTIONS = ("Leaderboard", "Attention sinks")
#: Ranks by which a strategy moves with sinks that is listed.
_MOVED = 1.0


@dataclass(frozen=True)
class SteeredPairs:
    """Minimal pairs under steering."""

    direction: tuple[str, str, int]  # concept, strategy and layer of the direction that steered them
    num_pairs: int  # number of pairs
    judged: Sequence[Judged]  # what they are worth, by strength
    harness: float  # accuracy of lm-evaluation-harness on the same pairs, unsteered


@dataclass(frozen=True)
class Measured:
    """What the page shows."""

    run: Run  # the run of D1 to D3, without sinks in the vectors
    with_sinks: Run  # the run of D1 with them, of strategies that need no backward pass
    pairs: SteeredPairs | None = None  # minimal pairs under steering; None without a direction that steers
    command: str = "make real-text"  # what made the page


def page(measured: Measured) -> str:
    """Return the page in Markdown."""
    folder = measured.run
    rows = pq.read_table(folder.file("results.parquet")).to_pylist()
    audit = pq.read_table(folder.file("audit.parquet")).to_pylist()
    concepts = sorted({row["concept"] for row in audit})
    with_sinks = pq.read_table(measured.with_sinks.file("results.parquet")).to_pylist()
    moved, boards = moved_by_sinks(rows, with_sinks)
    parts = [
        "# Real text, SmolLM2-135M",
        paragraph(
            f"A pretrained model on the {len(concepts)} concepts of [the corpus that ships]"
            "(../../assets/real_corpus/card.md) which pass their audit: which pooling is best for probing and for "
            "steering it, and what attention sinks do to the answer."
        ),
        _items(
            [
                *answers(best_of(build_ranks(rows, SEPARATION).boards, {row["metric"] for row in rows})),
                *(f"Compared with the published table, {order}" for order in published_orders(rows)),
                *moved,
            ]
        ),
        "One command measures and writes this page:",
        f"```console\n$ {measured.command}\n```",
        "## With and without attention sinks",
        paragraph(
            "Mean ranks and mean D1 by strategy, over concepts and layers. Excluded: tokens whose norm exceeds ten "
            "times the median of their passage are left out, which is the default "
            "([why](../metrics.md#attention-sinks)). Included: they stay, as in the published protocol. Intervals come "
            "from resampled concepts. Strategies that need a backward pass, or the states of each head, are measured "
            f"without sinks only. The table has those that move by {_MOVED:g} rank or more."
        ),
        table(
            ("strategy", "rank, excluded", "rank, included", "change", "D1, excluded", "D1, included", "change"),
            (line for line in boards if abs(float(line[3].split()[0])) >= _MOVED),
        ),
        *_minimal_pairs(measured.pairs),
        "## Concept by concept",
        *_shown(findings(rows, audit), _yields(concepts), separated(audit)),
        "## What it cannot show",
        _items(_CANNOT),
        "## The run",
        run_sections(leaderboard_markdown(folder)),
    ]
    return "\n\n".join(parts) + "\n"


def run_sections(leaderboard: str) -> str:
    """Return what the page shows of the tables of a run, one level below its title."""
    sections = re.split(r"\n+(?=^## )", leaderboard.strip(), flags=re.MULTILINE)
    names = tuple(f"## {name}\n" for name in _RUN_SECTIONS)
    listed = [sections[0], *(f"#{section}" for section in sections[1:] if section.startswith(names))]
    return "\n\n".join([*listed, "`poolbench-driver leaderboard` prints all tables of a run."])


def _minimal_pairs(pairs: SteeredPairs | None) -> list[str]:
    if pairs is None:
        return []
    concept, strategy, layer = pairs.direction
    intro = (
        f"{pairs.num_pairs:,} pairs of BLiMP, the same number of each paradigm, asked through the completions API "
        f"while every position is steered at block {layer} by the `{strategy}` direction of {concept}. A pair is "
        "right if the grammatical sentence is the likelier one; perplexity is per token of these sentences. Strengths "
        "are in median residual norms. lm-evaluation-harness, which puts a BOS before each sentence, gives an "
        f"accuracy of {pairs.harness:.3f} unsteered."
    )
    lines = [[f"{answer.strength:g}", f"{answer.accuracy:.3f}", f"{answer.perplexity:.1f}"] for answer in pairs.judged]
    return ["## Minimal pairs under steering", paragraph(intro), table(("strength", "accuracy", "perplexity"), lines)]


def separated(audit: Iterable[Row]) -> dict[str, str]:
    """Return by concept the verdict of the audit, and what separates its classes alone, with the AUROC."""
    verdicts: dict[str, str] = {}
    above: dict[str, list[str]] = defaultdict(list)
    for row in audit:
        verdicts[row["concept"]] = row["verdict"] or "not audited"
        if row["kind"] == "confound" and row["ci_low"] is not None and row["ci_low"] > row["limit"]:
            above[row["concept"]].append(f"{row['check']} {row['value']:.2f}")
    return {
        name: verdict + (f": {', '.join(above[name])}" if above[name] else "") for name, verdict in verdicts.items()
    }


def _yields(concepts: Iterable[str]) -> dict[str, list[str]]:
    """Return by concept the passages that ship (train, test, scorer), their domains, and the median of their tokens."""
    yields = {}
    for name in concepts:
        passages = read_concept(asset_path(REAL_CORPUS), name)
        counts = Counter(passages["split"].to_pylist())
        domains = {domain for domain in passages["domain"].to_pylist() if domain}
        sizes = [counts[split] for split in ("train", "test", "scorer")]
        words = median(passages["token_count"].to_pylist())
        yields[name] = [" / ".join(map(str, sizes)), str(len(domains)), f"{words:.0f}"]
    return yields


def _shown(findings: Findings, yields: Mapping[str, Sequence[str]], verdicts: Mapping[str, str]) -> list[str]:
    items = [
        f"Concepts on which half of the strategies have a D1 of {SATURATED} or more hardly rank strategies. They are "
        f"{len(findings.saturated)} of {len(findings.best)}: {_listed(findings.saturated)}.",
        f"Verdicts of the audit: {', '.join(f'{count} {name}' for name, count in sorted(findings.verdicts.items()))}. "
        "The table names what alone separates the classes, with its AUROC.",
        f"{len(findings.gated)} of {len(findings.best)} scorers pass their gate: {_listed(findings.gated)}. D2 and D3 "
        "have values for these only.",
    ]
    header = ("concept", "best strategy", "its D1", "A1_mean", "P1_last_token", "best beyond the confound")
    header += ("train / test / scorer", "domains", "median words", "verdict")
    lines = ([*line, *yields.get(line[0], [""] * 3), verdicts.get(line[0], "")] for line in findings.lines())
    return [_items(items), table(header, lines)]


def _items(texts: Iterable[str]) -> str:
    return "\n".join(paragraph(f"- {text}", "  ") for text in texts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
