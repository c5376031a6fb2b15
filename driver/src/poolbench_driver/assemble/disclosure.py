"""What the files of a run tell of sensitive concepts: figures, but no passage's name and nothing that is quoted."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from poolbench.concepts import CONCEPTS
from poolbench.contracts.keys import digest

_QUOTED = re.compile(r"(?<!\w)(['\"]).*?\1(?!\w)", re.DOTALL)


@cache
def _sensitive() -> frozenset[str]:
    return frozenset(concept.id for concept in CONCEPTS.all() if concept.sensitive)


def redacted(row: dict[str, Any]) -> dict[str, Any]:
    """A result row; a reason that has to do with a sensitive concept loses what it quotes."""
    if row.get("reason") and _sensitive() & {row.get(column) for column in ("concept", "neighbour", "scorer")}:
        return {**row, "reason": _QUOTED.sub("(withheld)", row["reason"])}
    return row


def opaque(passages_key: str, passage_id: str) -> str:
    """A stand-in for a passage's id, the same in every table: ids of real corpora name the document."""
    return digest([passages_key, passage_id], 16)
