"""A small main job on real text: `python tests/check_real_text.py [RUNS]`; skips, saying so, without the archives."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

CONCEPTS = "contrast,causation,negation_density"


def main() -> int:
    """Builds two corpora from the archives, runs all metrics on them, and checks that every kind of row is there."""
    archives = Path(os.environ.get("POOLBENCH_REAL_TEXT", "../shared/data"))
    if not archives.is_dir():
        print(f"skipped: no real-text archives at {archives} (POOLBENCH_REAL_TEXT)")
        return 0
    os.environ["POOLBENCH_REAL_TEXT"] = str(archives)
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="poolbench-real-"))
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
