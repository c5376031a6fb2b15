"""The leaderboard as Markdown, for pages that are kept with the code."""

from __future__ import annotations

from collections.abc import Iterable

from poolbench.contracts import Row
from poolbench_driver.suites.markdown import table
from poolbench_driver.suites.poolbench.report.answer import leaderboard
from poolbench_driver.suites.poolbench.report.audit import AuditView
from poolbench_driver.suites.poolbench.report.cosines import CosinesView
from poolbench_driver.suites.poolbench.report.means import MeansTable
from poolbench_driver.suites.poolbench.report.ranks import RanksView, rank_text
from poolbench_driver.suites.poolbench.report.views import View


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


def ranks_markdown(ranks: RanksView) -> list[str]:
    """Return ranks with what ties them, by family, concept family and model; nothing where nothing was ranked.

    The figures that so few concepts cannot give are left out, and a line says so. One concept has a list of values.
    """
    if not ranks.standings:
        return []
    if ranks.one_concept:
        values = [[row["strategy"], "" if row["value"] is None else f"{row['value']:.3f}"] for row in ranks.standings]
        title = f"\n## {ranks.primary} on {ranks.one_concept}\n"
        return [title, f"{ranks.limit}\n", table(["strategy", ranks.primary], values)]
    board = ranks.boards[ranks.primary]
    difference = None if ranks.limit else board.summary["critical_difference"]
    note = "" if difference is None else f", critical difference {difference:.2f}"
    parts = [
        f"\n## Ranks on {ranks.primary}: {len(board.blocks)} concepts{note}\n",
        *([f"{ranks.limit}\n"] if ranks.limit else []),
        _standings(ranks),
        "\n## Ranks by strategy family\n",
        table(
            ["family", "mean rank", "best"],
            [[f.family, rank_text(f.mean_rank, f.interval), f.strategies[0]] for f in ranks.strategy_families],
        ),
    ]
    for part, title in ((ranks.concept_families, "concept family"), (ranks.models, "model")):
        if part:
            parts += [f"\n## Ranks by {title}\n", table(["strategy", *part.parts], [[n, *c] for n, c in part.rows])]
    return parts


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


def _standings(ranks: RanksView) -> str:
    """Return the table of standings, with the columns that so many concepts and pairs can fill."""
    if ranks.limit:
        return table(["strategy", "mean rank"], [[row["strategy"], row["rank"]] for row in ranks.standings])
    lines = []
    for row in ranks.standings:
        best = row["best"] if row["best"] and row["best"]["p"] is not None else None
        holm = f", {best['p_holm']:.2g}" if best and ranks.shows_holm else ""
        lines.append([row["strategy"], row["rank"], row["groups"], f"{best['effect']:.2f}{holm}" if best else ""])
    of = "effect and p (Holm)" if ranks.shows_holm else "effect"
    return table(["strategy", "mean rank", "tie groups", f"{of} of the best against it"], lines)


def _verdicts(rows: Iterable[Row]) -> list[list[str]]:
    verdicts = [row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"]]
    return [[row["scorer"], "passed" if row["value"] == 1 else "failed", row["reason"] or ""] for row in verdicts]
