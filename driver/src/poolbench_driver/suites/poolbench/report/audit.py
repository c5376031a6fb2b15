"""The verdicts of the audit, as the report and the leaderboard show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poolbench.contracts import Row

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

    @property
    def text(self) -> str:
        """Return the verdicts in one line."""
        return ", ".join(f"{line['concept']} {line['verdict']}" for line in self.lines)


def build_audit(rows: Iterable[Row] | None, concepts: Iterable[str]) -> AuditView:
    """Return the verdict on each concept."""
    by_concept: dict[str, dict[str | None, Row]] = defaultdict(dict)
    for row in rows or ():
        by_concept[row["concept"]][row["check"]] = row
    return AuditView([_line(name, by_concept.get(name, {})) for name in dict.fromkeys(concepts)])


def _line(concept: str, checks: dict[str | None, Row]) -> Row:
    first = next(iter(checks.values()), None)
    if first is None or first["verdict"] is None:
        reason = "the run has no audit" if first is None else first["reason"]
        return {"concept": concept, "verdict": NOT_AUDITED, "reason": reason, "cells": dict.fromkeys(CHECKS, "")}
    cells = {name: _cell(name, checks.get(name)) for name in CHECKS}
    return {"concept": concept, "verdict": first["verdict"], "reason": first["verdict_reason"], "cells": cells}


def _cell(name: str, row: Row | None) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return str(row["status"])
    return f"{row['value']:.0%}" if name == "near_duplicates" else f"{row['value']:z.2f}"
