"""Reports of what became of the passages that corpora were chosen from."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolbench_corpora.io import write_at_once

YIELDS_NAME = "yields.json"
_INTERVAL_S = 5.0


class Reading:
    """Prints how many documents were read, at most every five seconds."""

    def __init__(self, concept: str) -> None:
        self._concept, self._printed_s = concept, time.monotonic()

    def __call__(self, num_documents: int) -> None:
        """Take the number of documents read so far."""
        if time.monotonic() - self._printed_s >= _INTERVAL_S:
            self._printed_s = time.monotonic()
            print(f"{self._concept}: {num_documents:,} documents read", file=sys.stderr)


def read_yields(folder: Path) -> dict[str, Any]:
    """Return the reports of a folder by concept; empty where there are none, or none that can be read."""
    try:
        reports = json.loads((folder / YIELDS_NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return reports if isinstance(reports, dict) else {}


def write_yields(folder: Path, yields: Mapping[str, Any]) -> None:
    """Write the reports by concept."""
    write_at_once(folder / YIELDS_NAME, json.dumps(dict(sorted(yields.items())), indent=1, ensure_ascii=False) + "\n")


def show_yields(yields: Mapping[str, Any]) -> None:
    """Print one table: passages that were chosen, documents that were read, and what each rule dropped."""
    rows = [("concept", "passages", "documents", "dropped by rule")]
    for name, report in yields.items():
        rows.append(
            (name, f"{report['chosen']:,}", f"{sum(report['documents'].values()):,}", dropped_by(report) or "-")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        first = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        print(f"{first}  {row[3]}".rstrip())


def dropped_by(found: Mapping[str, Any]) -> str:
    """Return how many passages each rule dropped, as one line; the empty string for none."""
    return ", ".join(f"{rule} {counts['dropped']:,}" for rule, counts in found["rules"].items())
