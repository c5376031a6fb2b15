"""Measure a pretrained model with few passages: `python -m tests.check_real_model [RUNS]`, on a running cluster.

It is `run --model smollm2-135m --preset small` with one concept, few strategies and few texts. Exit code 1 names what
does not hold. D2 must have rows; they may be null, because the scorer's gate is strict with so few passages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

CONCEPT = "bureaucratic"
STRATEGIES = ("A1_mean", "A4_norm_weighted", "P2_first_token")
SETTINGS = ("budget.num_openings=6", "budget.strengths=[0.25]", "budget.null_strengths=[0.25]",
            "budget.reference_strength=0.25", "budget.max_tokens=24", "budget.num_continuations=60")  # fmt: skip


def findings(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Everything that does not hold."""
    found = {(row["strategy"], row["metric"], row["layer"]): row for row in rows}
    first = min(row["layer"] for row in rows if row["metric"] == "d1.auroc")
    for strategy in STRATEGIES:
        value = found[strategy, "d1.auroc", first]["value"]
        if value is None or value < 0.5:
            yield f"{strategy}: D1 at layer {first} is {value}"
    for strategy, share in (("A1_mean", 1.0), ("P2_first_token", 0.0)):
        sinks = found[strategy, "sinks.passages", first]["value"]
        left_out = found[strategy, "sinks.left_out", first]
        if sinks != 1.0 or left_out["value"] != share * left_out["n"]:
            yield f"{strategy}: {sinks:.0%} of the passages have sinks, and {left_out['value']:.0f} are left out"
    steered = [row for row in rows if row["metric"] == "d2.scp" and row["strategy"] == "A1_mean"]
    if not steered or steered[0]["status"] not in ("ok", "too_few", "scorer_invalid"):
        yield f"D2 of A1_mean is {[row['status'] for row in steered]}"
    if {row["model_revision"] for row in rows} != {"gguf-q4_1-bcc81830d10c"}:
        yield "the rows do not say that the weights were dequantised"


def check(runs: Path) -> int:
    """Return 0 if a run in the folder `runs` has the figures that it must have."""
    command = [str(Path(sys.executable).with_name("poolbench-driver")), "run", "--preset", "small"]
    command += ["--model", "smollm2-135m", "--concepts", CONCEPT, "--strategies", ",".join(STRATEGIES)]
    command += ["--limit", "100", "--output", str(runs), "--display", "plain"]
    command += [part for setting in SETTINGS for part in ("--set", setting)]
    if code := subprocess.run(command, check=False).returncode:
        return code
    wrong = list(findings(pq.read_table(runs / "latest" / "results.parquet").to_pylist()))
    print("\n".join(wrong) or "a pretrained model: everything holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(check(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory(prefix="poolbench-real-model-") as folder:
        sys.exit(check(Path(folder)))
