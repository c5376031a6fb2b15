"""Helpers of the tests of releases."""

from pathlib import Path
from typing import Any

from poolbench_driver.records.folder import create_run
from poolbench_driver.release.source import Export


def export_of(made: Any, folder: Path, concepts: list[str], **how: Any) -> Export:
    """The export of a plan and its artifacts, whose run lies below a folder."""
    run = create_run(folder / "runs", made.plan.scope.config)
    return Export(run, made.plan, made.artifacts, concepts, "apache-2.0", "poolbench-driver export", **how)


def content_of(folder: Path) -> dict[str, bytes]:
    """The bytes of all files below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
