"""The changes between two runs as tables for a terminal or as Markdown."""

from collections.abc import Container, Iterable, Sequence
from textwrap import shorten

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.comparison.changes import RunChanges
from poolbench_driver.comparison.pairing import SAME_VALUE
from poolbench_driver.pages.boards.ranking import LEVEL
from poolbench_driver.pages.text import table

Titled = tuple[str, Sequence[str], list[Row]]

_VALUE = ("metric", "strategy", "first", "second", "difference", "95 % interval", "p", "p (Holm)", "concepts", "")
_STATUS = ("metric", "strategy", "from", "to", "cells", "reason")
_RANK = ("metric", "strategy", "first", "second", "change", "95 % interval", "concepts")
_UNPAIRED = ("run", "metric", "strategies", "cells", "why")
_AGREEMENT = ("metric", "value", "95 % interval", "num_strategies", "status")

#: Decimals of the figures of a table by the name of its difference.
DECIMALS = {"difference": 4, "change": 2}
#: Characters of a reason that a screen has room for.
_REASON = 80


def as_sentence(changes: RunChanges, first: str, second: str) -> str:
    """Return in one sentence how many cells changed."""
    counts, sides = changes.summary, f"{first} against {'itself' if first == second else second}"
    same = "the same figures in {common} common cells"
    moved = "of {common} common cells, {changed_value} changed in value and {changed_status} in status"
    summary = (moved if counts["changed_value"] or counts["changed_status"] else same).format(**counts)
    if not (counts["only_first"] or counts["only_second"]):
        return f"{sides}: {summary}"
    return (
        f"{sides}: {summary}; {counts['only_first']} are only in the first run, {counts['only_second']} in the second"
    )


def as_tables(changes: RunChanges, *, everything: bool = False) -> list[Titled]:
    """Return title, columns and rows of every table that is not empty. Together, the tables fit on a screen.

    If no value changed, the means of the ranked metrics are shown.

    Args:
        everything: Return all rows in the order of the metrics, including unchanged values and ranks, and the agreement
            of the ranks.
    """
    unpaired = [{"run": "first", **row} for row in changes.only_first]
    unpaired += [{"run": "second", **row} for row in changes.only_second]
    if everything:
        agreement = [
            {**row, "value": fixed(row["value"], 3), "95 % interval": _interval(row)} for row in changes.agreement
        ]
        values, statuses, ranks = changes.values, changes.statuses, changes.ranks
    else:
        agreement = []
        ranked = dict.fromkeys(row["metric"] for row in changes.ranks)  # what strategies are compared by
        moved = [row for row in changes.values if _moved(row, "difference")]
        values = sorted(moved, key=lambda row: _certainty(row, ranked))
        values = values or [row for row in changes.values if row["metric"] in ranked and row["strategy"] in ("*", "")]
        ranks = [row for row in changes.ranks if row["change"] and _moved(row, "change")]
        ranks.sort(key=lambda row: -abs(row["change"]))
        statuses, unpaired = (
            sorted(map(_shortened, rows), key=lambda row: -row["cells"]) for rows in (changes.statuses, unpaired)
        )
    tables = (
        ("values, second minus first, over concepts", _VALUE, [_value(row) for row in values], 6),
        ("changed status", _STATUS, statuses, 3),
        ("mean ranks over the common cells, 1 is best", _RANK, [_rank(row) for row in ranks], 3),
        ("cells of one run only", _UNPAIRED, unpaired, 3),
        ("agreement of mean ranks, Spearman", _AGREEMENT, agreement, 0),
    )
    titled_tables: list[Titled] = []
    for title, columns, rows, room in tables:
        if everything or len(rows) <= room:
            titled_tables.append((title, columns, rows))
        else:
            titled_tables.append((f"{title}: {room} of {len(rows)} (--all: the rest)", columns, rows[:room]))
    return [table for table in titled_tables if table[2]]


def _certainty(row: Row, ranked: Container[str]) -> tuple[bool, float, bool, float]:
    """Return the sort key of values: verdict, p (1 for one concept), ranked metrics first, size of the change."""
    p = row["p"] if row["p_holm"] is None else row["p_holm"]
    return not _verdict(row), p, row["metric"] not in ranked, -abs(row["difference"])


def _shortened(row: Row) -> Row:
    return {k: shorten(v, _REASON, placeholder="…") if k in ("reason", "why") else v for k, v in row.items()}


def as_markdown(tables: Iterable[Titled], heading: str) -> str:
    """Return the tables as Markdown under one heading."""
    parts = [f"# {heading}"]
    for title, columns, rows in tables:
        lines = [[str(row.get(name, "")) for name in columns] for row in rows]
        parts += [f"\n## {title.capitalize()}\n", table(columns, lines)]
    return "\n".join(parts)


def _moved(row: Row, name: str) -> bool:
    return abs(row[name]) > SAME_VALUE


def _value(row: Row) -> Row:
    p_values = {"p": _probability(row["p"]), "p (Holm)": _probability(row["p_holm"])}
    return {**_figures(row, "difference"), **p_values, "": _verdict(row)}


def _verdict(row: Row) -> str:
    """Return better or worse if the metric has a direction, the interval excludes 0 and the corrected test agrees.

    The interval alone is not enough for a verdict: it is too narrow over few concepts, and there are many strategies.
    """
    better, low, high = row["higher_is_better"], row["ci_low"], row["ci_high"]
    p = row["p"] if row["p_holm"] is None else row["p_holm"]
    if better is None or low is None or low <= 0 <= high or p > LEVEL:
        return ""
    return "better" if (low > 0) == better else "worse"


def _rank(row: Row) -> Row:
    texts = _figures(row, "change")
    return texts if texts["95 % interval"] else {**texts, "95 % interval": row["status"].replace(Status.OK, "")}


def _figures(row: Row, difference: str) -> Row:
    """Return a row with texts of both values, their difference and its interval. `number` is the difference."""
    texts = {name: fixed(row[name], DECIMALS[difference]) for name in ("first", "second", difference)}
    return {**row, **texts, "95 % interval": _interval(row, DECIMALS[difference]), "number": row[difference]}


def _interval(row: Row, decimals: int = 3) -> str:
    low, high = row["interval"] or (None, None) if "interval" in row else (row["ci_low"], row["ci_high"])
    return "" if low is None else f"{low:z.{decimals}f} to {high:z.{decimals}f}"


def _probability(p: float | None) -> str:
    return "<0.001" if p is not None and p < 0.001 else fixed(p, 3)


def fixed(value: float | None, decimals: int) -> str:
    """Return a number with as many decimals, or "" for None."""
    return "" if value is None else f"{value:z.{decimals}f}"
