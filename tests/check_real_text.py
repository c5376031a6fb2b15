"""Build corpora from the archives of real text, and measure one of them: `python -m tests.check_real_text [RUNS]`.

It is `make real-text` with little of everything. Without the archives it prints a message and skips.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from recipes.annotator.archive import archive_folder
from recipes.real_text.page import Measured, page
from recipes.real_text.steps import FINISHED, build, measure

from poolbench_driver.records import find_run

CONCEPTS = "contrast,causation,negation_density"


def main() -> int:
    """Run the check, or skip it without the archives."""
    archives = archive_folder()
    if not archives.is_dir():
        print(f"skipped: no real-text archives at {archives} (POOLBENCH_REAL_TEXT)")
        return 0
    os.environ["POOLBENCH_REAL_TEXT"] = str(archives)
    if len(sys.argv) > 1:
        return check(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="poolbench-real-") as runs:
        return check(Path(runs))


def check(runs: Path) -> int:
    """Return 0 if the corpora can be built in the folder `runs`, and a run on them has all kinds of rows and a page."""
    lacking = build(runs / "corpus", "demo", CONCEPTS)
    code = measure(runs, ["contrast"], "demo", "A1_mean,L1_pos_filtered", "--limit", "60")
    if code not in FINISHED:
        return code
    folder = find_run(runs, "latest")
    metrics = set(pq.read_table(folder.file("results.parquet"))["metric"].to_pylist())
    missing = {"d1.auroc", "d1.excess_over_confound", "d2.best_gain", "d3.ld", "scorer.gate"} - metrics
    written = page(Measured(folder, folder, runs / "corpus", lacking))
    print(f"real text: {len(metrics)} metrics; missing: {', '.join(sorted(missing)) or 'none'}")
    return 1 if missing or lacking or "| contrast |" not in written else 0


if __name__ == "__main__":
    sys.exit(main())
