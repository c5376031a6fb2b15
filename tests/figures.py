"""Compare the figures of two runs."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

Rows = dict[str, dict[str, Any]]


def rows_of(run: Path) -> Rows:
    """Return the rows of a run's results by cell."""
    return {row["cell_id"]: row for row in pq.read_table(run / "results.parquet").to_pylist()}


def differences(found: Rows, expected: Rows) -> list[str]:
    """Return in what the figures of two runs of the same work differ.

    Vectors that are computed without those of the other strategies differ in their last bits. The digest is of rounded
    figures, so it may differ although no figure does.
    """
    missing = [f"{cell}: in one run only" for cell in found.keys() ^ expected.keys()]
    both = found.keys() & expected.keys()
    return missing + [f"{cell}: {line}" for cell in sorted(both) for line in _cell(found[cell], expected[cell])]


def assert_same(found: Rows, expected: Rows) -> None:
    """Check that two runs of the same work have the same figures."""
    assert differences(found, expected) == []


def _cell(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    lines = [name for name in ("status", "reason") if found[name] != expected[name]]
    for name in ("value", "ci_low", "ci_high"):
        a, b = found[name], expected[name]
        if (a is None) != (b is None) or (a is not None and a != pytest.approx(b, rel=1e-5, abs=1e-5)):
            lines.append(name)
    return [f"{name} {found[name]!r}, expected {expected[name]!r}" for name in lines]
