"""What is said about a run whose suite says nothing of its own: the board of its entrants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean

from poolbench.contracts import Row
from poolbench_driver.contract.suite import BoardSpec, Report, Section
from poolbench_driver.pages.markdown import table


def plain_report(title: str, rows: Sequence[Row], board: BoardSpec) -> Report:
    """Return the board of a run: entrants by mean rank on the primary metric, with the mean of each shown metric."""
    lines = _lines(rows, board)
    head = [board.entrant, "mean rank", *board.shown]
    answer = _answer(lines, rows, board)
    values = {"answer": answer, "head": head, "lines": lines, "primary": board.primary, "block": board.block}
    section = Section("poolbench_driver.pages", "plain.html.j2", values, "leaderboard", "Board")
    text = table(head, lines)
    return Report(title, [section], f"{answer}\n\n{text}", f"{answer}\n\n{text}")


def _lines(rows: Sequence[Row], board: BoardSpec) -> list[list[str]]:
    """Return a line for each entrant, the best first; those without a rank come last."""
    ranks = {row[board.entrant]: row["value"] for row in rows if _is_rank(row, board.primary)}
    entrants = dict.fromkeys(row[board.entrant] for row in rows if row[board.entrant] and row["metric"] in board.shown)
    ordered = sorted(entrants, key=lambda name: (ranks.get(name) is None, ranks.get(name) or 0.0))
    return [
        [name, _text(ranks.get(name)), *(_mean(rows, board, name, metric) for metric in board.shown)]
        for name in ordered
    ]


def _is_rank(row: Row, metric: str) -> bool:
    return row["metric"] == "rank.mean" and json.loads(row["params"]) == {"of": metric, "board": "all"}


def _mean(rows: Sequence[Row], board: BoardSpec, entrant: str, metric: str) -> str:
    """Return the mean over blocks, or the first reason why there is none."""
    entrant_rows = [row for row in rows if row["metric"] == metric and row[board.entrant] == entrant]
    values = [row["value"] for row in entrant_rows if row["value"] is not None]
    return _text(fmean(values)) if values else next((str(row["status"]) for row in entrant_rows), "")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _answer(lines: Sequence[Sequence[str]], rows: Sequence[Row], board: BoardSpec) -> str:
    blocks = {row[board.block] for row in rows if row["metric"] == board.primary and row["value"] is not None}
    if not lines or not blocks:
        return f"No {board.entrant} has a value of {board.primary}."
    over = f"{len(blocks)} {board.block}{'s' if len(blocks) > 1 else ''}"
    return f"{lines[0][0]} comes first of {len(lines)} on {board.primary}, over {over}."
