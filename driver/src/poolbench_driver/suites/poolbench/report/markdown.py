"""The figures of a run as text: what a run ends with, and its tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poolbench.contracts import Row
from poolbench_driver.pages.boards.ranks import rank_cell, ranks_markdown
from poolbench_driver.pages.markdown import table
from poolbench_driver.suites.poolbench.report.answer import COLUMNS
from poolbench_driver.suites.poolbench.report.audit import AuditView
from poolbench_driver.suites.poolbench.report.cosines import CosinesView
from poolbench_driver.suites.poolbench.report.means import MeansTable
from poolbench_driver.suites.poolbench.report.views import View

#: Lines of the table that stands under the answer.
_SHOWN = 6


def summary(view: View) -> str:
    """Return what a run ends with: its answer, the first lines of its board, and the problems of its data."""
    lines = leaderboard(view, [name for name in COLUMNS if name in view.columns])[: _SHOWN + 1]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(["", view.headline, "", *table, "", *view.problems])


def leaderboard(view: View, columns: Sequence[str]) -> list[list[str]]:
    """Return head and lines of the leaderboard; one concept has no column of ranks."""
    head = [] if view.ranks.one_concept else ["mean rank (D1)"]
    lines = [
        [row["strategy"], *([rank_cell(row["rank"])] if head else []), *(row[name] for name in columns)]
        for row in view.leaderboard
    ]
    return [["strategy", *head, *columns], *lines]


def tables_markdown(view: View) -> str:
    """Return leaderboard, concept-by-strategy tables, checks, scorers and problems of a run."""
    head, *board = leaderboard(view, view.columns)
    parts = ["## Leaderboard\n", table(head, board)]
    parts += audit_markdown(view.audit)
    parts += means_markdown("D1 in detail, means over concepts and layers", view.d1)
    parts += ["\n## Ranks\n", view.ranks.limit] if view.ranks.one_concept else ranks_markdown(view.ranks)
    for heat_map in view.heat_maps:
        parts.append(f"\n## {heat_map.metric}: {heat_map.summary}\n")
        parts.append(
            table(["strategy", *heat_map.concepts], [[name, *(c.text for c in row)] for name, row in heat_map.rows])
        )
    parts += cosines_markdown(view.cosines)
    parts += means_markdown("Published definitions, never ranked, beside the corrected means", view.published)
    if verdicts := _verdicts(view.scorers):
        parts += ["\n## Scorers\n", table(["scorer", "gate", "reason"], verdicts)]
    if view.sinks:
        lines = [[str(row["layer"]), f"{row['passages']:.0%}", str(row["left_out"])] for row in view.sinks]
        parts += ["\n## Attention sinks\n", table(["layer", "passages with a sink", "tokens left out"], lines)]
    if view.problems:
        parts += ["\n## Problems\n", *(f"- {line}" for line in view.problems)]
    return "\n".join(parts)


def audit_markdown(audit: AuditView) -> list[str]:
    """Return the verdict on the passages of each concept, with the figures behind it."""
    header = ["concept", "verdict", *audit.checks, "reason"]
    lines = [
        [line["concept"], line["verdict"], *(line["cells"][name] for name in audit.checks), line["reason"]]
        for line in audit.lines
    ]
    return ["\n## Verdict on the passages\n", table(header, lines)]


def cosines_markdown(cosines: CosinesView) -> list[str]:
    """Return, for each strategy, the strategy with the most parallel direction; nothing if none can be compared."""
    if cosines.shown is None:
        return []
    figures = [[row[name] for name in ("cosine", "C3")] for row in cosines.nearest]
    lines = [
        [row["strategy"], row["other"], *("" if value is None else f"{value:z.4f}" for value in values)]
        for row, values in zip(cosines.nearest, figures, strict=True)
    ]
    title = f"\n## Nearest direction, {cosines.shown.direction} at layer {cosines.shown.layer}, mean over concepts\n"
    return [title, table(["strategy", "nearest", cosines.shown.direction, "C3"], lines)]


def means_markdown(title: str, means: MeansTable | None) -> list[str]:
    """Return a table of means with its notes; nothing where the run has none."""
    if means is None:
        return []
    notes = [f"\n{'; '.join(means.notes)}"] if means.notes else []
    return [f"\n## {title}\n", table(["strategy", *means.full_heads], [[n, *c] for n, c in means.lines]), *notes]


def _verdicts(rows: Iterable[Row]) -> list[list[str]]:
    verdicts = [row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"]]
    return [[row["scorer"], "passed" if row["value"] == 1 else "failed", row["reason"] or ""] for row in verdicts]
