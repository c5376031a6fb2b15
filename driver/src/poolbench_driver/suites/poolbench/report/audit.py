"""The verdicts of the audit, as the page shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poolbench.contracts import Row
from poolbench_driver.contract.page import Cell, Column, Heads, Items, Line, Part, Table
from poolbench_driver.pages.cells import number

NOT_AUDITED = "not audited"
#: Checks of the audit in the order of their columns.
CHECKS = (
    "length", "domain", "punctuation", "casing", "readability", "words", "words_without_seeds", "near_duplicates",
)  # fmt: skip


@dataclass(frozen=True)
class AuditView:
    """One line per concept: verdict, reason and the figure of each check."""

    lines: list[Row]
    checks: Sequence[str] = CHECKS


def build_audit(rows: Iterable[Row] | None, concepts: Iterable[str]) -> AuditView:
    """Return the verdict on each concept."""
    by_concept: dict[str, dict[str | None, Row]] = defaultdict(dict)
    for row in rows or ():
        by_concept[row["concept"]][row["check"]] = row
    return AuditView([_line(name, by_concept.get(name, {})) for name in dict.fromkeys(concepts)])


def audit_part(audit: AuditView) -> Part:
    """Return the verdict on the passages of each concept, with the figures behind it."""
    heads: Heads = ["concept", Column("verdict", is_text=True), *(name.replace("_", " ") for name in audit.checks)]
    lines = [
        Line.of(line["concept"], line["verdict"], *(line["cells"][name] for name in audit.checks))
        for line in audit.lines
    ]
    reasons = [
        f"{line['concept']}: {reason}"
        for line in audit.lines
        if line["reason"]
        for reason in line["reason"].split("; ")
    ]
    note = (
        "What separates the classes besides the concept: out-of-fold AUROC of each surface feature on the folds of D1, "
        "and the share of test passages that are near-duplicates of train passages. Confounded: the lower limit of a "
        "feature is above .60, or there are near-duplicates. Short: too few independent passages to tell. Words are "
        "how most concepts are expressed, and decide nothing. `d1.excess_over_confound` is D1 beyond the best surface "
        "feature."
    )
    return Part("audit", "Verdict on the passages", [Table.of(heads, lines), Items(reasons)], note=note)


def _line(concept: str, checks: dict[str | None, Row]) -> Row:
    first = next(iter(checks.values()), None)
    if first is None or first["verdict"] is None:
        reason = "the run has no audit" if first is None else first["reason"]
        return {"concept": concept, "verdict": NOT_AUDITED, "reason": reason, "cells": dict.fromkeys(CHECKS, Cell())}
    cells = {name: _cell(name, checks.get(name)) for name in CHECKS}
    return {"concept": concept, "verdict": first["verdict"], "reason": first["verdict_reason"], "cells": cells}


def _cell(name: str, row: Row | None) -> Cell:
    if row is None:
        return Cell()
    if row["value"] is None:
        return Cell(str(row["status"]))
    return number(row["value"], ".0%" if name == "near_duplicates" else "z.2f")
