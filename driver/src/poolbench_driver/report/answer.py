"""The answer of a run in sentences: which strategy is best for probing and for steering, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from poolbench.suites import RankBoard, rank_board
from poolbench_driver.audit import Verdict
from poolbench_driver.report.audit import NOT_AUDITED, AuditView
from poolbench_driver.report.ranks import rank_cell, rank_text

if TYPE_CHECKING:
    from poolbench_driver.report.views import View

#: Metrics and what they answer.
QUESTIONS = {"d1.auroc": "probing", "d2.best_gain": "steering"}
_TEST, _NAMED = "Nemenyi's test, 5 %", 3
#: Lines of the table that stands under the answer.
_SHOWN = 6
_COLUMNS = ("d1.auroc", "d2.best_gain", "d3.robust_ld")


def answers(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for probing and one for steering, of a run that has their metrics.

    The sentence follows from the tie groups of Nemenyi's test around the best mean rank.
    """
    measured = {row["metric"] for row in rows}
    for metric, purpose in QUESTIONS.items():
        if metric in measured:
            board = rank_board(rows, metric)
            yield f"For {purpose}, {_best(board) if board is not None else 'no two strategies have a value.'}"


def _best(board: RankBoard) -> str:
    best, measure, summary = board.strategies[0], board.measures[0], board.summary
    values = [value for value in board.values_NK[:, 0] if isfinite(value)]
    figure = f" and a mean {board.metric} of {fmean(values):.3f}" if values else ""
    lead = (
        f"{best} has the best mean rank: {rank_text(measure.value, (measure.ci_low, measure.ci_high))} of "
        f"{len(board.strategies)} over {_counted(len(board.blocks), 'concept')}{figure}."
    )
    if summary["critical_difference"] is None:
        return f"{lead} How sure that is cannot be said: {summary['reason']}."
    others = set(board.strategies) - {best}
    tied = [name for name in board.strategies if name in others and name in _group(summary["tie_groups"], best)]
    if not tied:
        return f"{lead} All others are worse beyond chance ({_TEST})."
    if len(tied) == len(others):
        return f"{lead} The data cannot tell it from any other ({_TEST})."
    named = ", ".join(tied[:_NAMED]) + (f" and {len(tied) - _NAMED} more" if len(tied) > _NAMED else "")
    return f"{lead} The data cannot tell it from {named}; it is better than the others ({_TEST})."


def problems(audit: AuditView, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line per problem of the data: corpora whose verdict is not `pass`, and scorers that failed the gate."""
    for line in audit.lines:
        if line["verdict"] == NOT_AUDITED:
            yield f"{line['concept']}: its passages were not audited"
        elif line["verdict"] != Verdict.PASS:
            yield f"{line['concept']}: the verdict on its passages is {line['verdict']}"
    verdicts = [row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"]]
    failed = {row["scorer"] for row in verdicts if row["value"] != 1}
    yield from (f"{name}: its scorer failed the gate, so that D2 and D3 are null" for name in sorted(failed))


def summary(view: View) -> str:
    """Return what a run ends with: its answer, the first lines of its board, and the problems of its data."""
    board = [[row["strategy"], rank_cell(row["rank"]), *(row[name] for name in _COLUMNS)] for row in view.leaderboard]
    lines = [["strategy", "mean rank (D1)", *_COLUMNS], *board[:_SHOWN]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(["", *view.answers, "", *table, "", *view.problems])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _group(groups: Sequence[Sequence[str]], best: str) -> Sequence[str]:
    return next((group for group in groups if best in group), [best])
