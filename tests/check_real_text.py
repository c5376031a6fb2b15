"""Build corpora from the archives of real text, and measure one of them: `python tests/check_real_text.py [RUNS]`.

Without the archives it prints a message and skips.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

CONCEPTS = "contrast,causation,negation_density"


def main() -> int:
    """Run the check, or skip it without the archives."""
    archives = Path(os.environ.get("POOLBENCH_REAL_TEXT", "../shared/data"))
    if not archives.is_dir():
        print(f"skipped: no real-text archives at {archives} (POOLBENCH_REAL_TEXT)")
        return 0
    os.environ["POOLBENCH_REAL_TEXT"] = str(archives)
    if len(sys.argv) > 1:
        return check(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="poolbench-real-") as runs:
        return check(Path(runs))


def check(runs: Path) -> int:
    """Return 0 if the corpora can be built in the folder `runs` and a run on them has all kinds of rows."""
    driver = str(Path(sys.executable).with_name("poolbench-driver"))
    corpus = runs / "corpus"
    build = [driver, "corpus", "build", str(corpus), "--source", "real", "--concepts", CONCEPTS, "--budget", "demo"]
    subprocess.run(build, check=True)
    job = [
        "--preset",
        "demo",
        "--corpus",
        str(corpus),
        "--concepts",
        "contrast",
        "--strategies",
        "A1_mean,L1_pos_filtered",
    ]
    done = subprocess.run(
        [driver, "run", *job, "--limit", "60", "--output", str(runs), "--display", "plain"], check=False
    )
    if done.returncode not in (0, 1):
        return done.returncode
    metrics = set(pq.read_table(runs / "latest" / "results.parquet")["metric"].to_pylist())
    missing = {"d1.auroc", "d2.best_gain", "d3.ld", "scorer.gate"} - metrics
    print(f"real text: {len(metrics)} metrics; missing: {', '.join(sorted(missing)) or 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
