"""Withhold what the files of a run may not hold of sensitive concepts: names of passages, and what reasons quote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from poolbench.concepts import CONCEPTS
from poolbench.contracts.keys import digest

WITHHELD = "(withheld)"
#: Records of earlier versions do not say which parts of their reason come from data: those are all in quotes.
_IN_QUOTES = re.compile(r"(?<!\w)(['\"]).*?\1(?!\w)", re.DOTALL)


@cache
def _sensitive() -> frozenset[str]:
    return frozenset(concept.id for concept in CONCEPTS.all() if concept.sensitive)


def redacted(row: dict[str, Any]) -> dict[str, Any]:
    """Return a result row without the column `quoted`, which its reason loses if it concerns a sensitive concept."""
    quoted = row.get("quoted")
    row = {name: value for name, value in row.items() if name != "quoted"}
    if row.get("reason") and _sensitive() & {row.get(column) for column in ("concept", "neighbour", "scorer")}:
        row["reason"] = _without(row["reason"], quoted)
    return row


def _without(reason: str, quoted: Sequence[str] | None) -> str:
    """Return a reason without what it quotes, or nothing of it where it does not hold what it should quote."""
    if quoted is None:
        return _IN_QUOTES.sub(WITHHELD, reason)
    if not all(part in reason for part in quoted):
        return WITHHELD
    for part in sorted(quoted, key=len, reverse=True):
        reason = reason.replace(part, WITHHELD)
    return reason


def opaque(passages_key: str, passage_id: str) -> str:
    """Return a stand-in for a passage's id, the same in every table: ids of real corpora name the document."""
    return digest([passages_key, passage_id], 16)
