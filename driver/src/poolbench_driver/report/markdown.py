"""The leaderboard as Markdown, for pages that are kept with the code."""

from __future__ import annotations

from collections.abc import Iterable

from poolbench_driver.report.views import Row, build_view
from poolbench_driver.rundir import RunFolder


def leaderboard_markdown(folder: RunFolder) -> str:
    """Facts, leaderboard, concept-by-strategy tables, checks and scorers of a run."""
    view = build_view(folder)
    board = [[row["strategy"], _rank(row["rank"]), *(row[name] for name in view.columns)] for row in view.leaderboard]
    parts = [
        "\n".join(f"- {name}: {value}" for name, value in view.facts),
        "## Leaderboard\n",
        _table(["strategy", "mean rank (D1)", *view.columns], board),
    ]
    for heat_map in view.heat_maps:
        parts.append(f"\n## {heat_map.metric}: {heat_map.summary}\n")
        parts.append(
            _table(["strategy", *heat_map.concepts], [[name, *(c.text for c in row)] for name, row in heat_map.rows])
        )
    parts += ["\n## Scorers\n", _table(["scorer", "gate", "reason"], _verdicts(view.scorers))]
    parts += ["\n## Nulls\n", _table(["metrics", "status", "rows"], _nulls(view.nulls))]
    return "\n".join(parts)


def _rank(row: Row | None) -> str:
    if row is None or row["value"] is None:
        return ""
    return f"{row['value']:.2f} [{row['ci_low']:.1f}, {row['ci_high']:.1f}]"


def _verdicts(rows: Iterable[Row]) -> list[list[str]]:
    verdicts = [row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"]]
    return [[row["scorer"], "passed" if row["value"] == 1 else "failed", row["reason"] or ""] for row in verdicts]


def _nulls(rows: Iterable[Row]) -> list[list[str]]:
    return [[row["family"], row["status"], str(row["count"])] for row in rows]


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
