"""Measure a pretrained model on few real passages: `python -m tests.check_real_model [RUNS]`, on a running cluster.

With `--steered-text` it only steers one text. Else it is `make real-text` with little of everything. Exit code 1 names
what does not hold. D2 must have rows; they may be null, because the scorer's gate is strict with so few passages.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from recipes.real_text.__main__ import BUDGET, MODEL
from recipes.results import measure
from tests.check_demo import DRIVER, OPENING, steering_by_name
from tests.pages import REPOSITORY

from poolbench.settings import ClusterSettings

CONCEPT = "bureaucratic"
#: Of the hidden states of the model.
WIDTH = 576
STRATEGIES = ("A1_mean", "A4_norm_weighted", "P2_first_token")
SETTINGS = ("budget.num_openings=6", "budget.strengths=[0.25]", "budget.null_strengths=[0.25]",
            "budget.reference_strength=0.25", "budget.max_tokens=24", "budget.num_continuations=60")  # fmt: skip


def findings(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Everything that does not hold."""
    found = {(row["strategy"], row["metric"], row["layer"]): row for row in rows}
    first = min(row["layer"] for row in rows if row["metric"] == "d1.auroc")
    for strategy in STRATEGIES[:2]:  # the first token is a sink, whose vector hardly differs between passages
        value = found[strategy, "d1.auroc", first]["value"]
        if value is None or value < 0.5:
            yield f"{strategy}: D1 at layer {first} is {value}"
    sinks, left_out = (found["A1_mean", f"sinks.{what}", first] for what in ("passages", "left_out"))
    if sinks["value"] != 1.0 or left_out["value"] < left_out["n"]:
        yield f"{sinks['value']:.0%} of the passages have sinks, and A1_mean leaves {left_out['value']:.0f} out"
    kept = found.get(("P2_first_token", "sinks.left_out", first))  # absent where all vectors are alike
    if kept is not None and kept["value"] != 0:
        yield f"P2_first_token leaves {kept['value']:.0f} sinks out"
    steered = [row for row in rows if row["metric"] == "d2.scp" and row["strategy"] == "A1_mean"]
    if not steered or steered[0]["status"] not in ("ok", "too_few", "scorer_invalid"):
        yield f"D2 of A1_mean is {[row['status'] for row in steered]}"
    if {row["model_revision"] for row in rows} != {"gguf-q4_1-bcc81830d10c"}:
        yield "the rows do not say that the weights were dequantised"


def steered_text(folder: Path) -> Iterator[str]:
    """Steer a text along a random vector; the receipt must count each of its positions."""
    vector = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)
    np.save(folder / "vector.npy", vector / np.linalg.norm(vector))
    texts = []
    along = ["--vector", str(folder / "vector.npy"), "--layer", "15", "--alpha", "60"]  # about the norm of the states
    for options in ([], along):
        command = [str(DRIVER), "steer", OPENING, "--model", MODEL, *options, "--max-tokens", "16", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            yield f"steer ended with {done.returncode}: {done.stderr[-500:]}"
            return
        (row,) = json.loads(done.stdout)["texts"]
        texts.append(row["text"])
        print(f"  {MODEL}, {' '.join(options[-2:]) or 'unsteered'}: {row['text']!r}; receipt {row['receipt']}")
    if texts[0] == texts[1]:
        yield "steering changes nothing"
    receipt = row["receipt"]
    if not receipt["positions_expected"] or receipt["positions_changed"] != receipt["positions_expected"]:
        yield f"the receipt of the steered text does not hold: {receipt}"


def chat_of_the_page() -> Iterator[str]:
    """Ask what docs/queries.md asks this model, by the commands of the page."""
    text = (REPOSITORY / "docs/queries.md").read_text("utf-8")
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith(("$ export ", "$ curl "))]
    commands = [line for line in lines if line.startswith("export") or f'"model": "{MODEL}"' in line]
    script = "\n".join(commands).replace("http://127.0.0.1:8000", ClusterSettings.load().http_address)
    done = subprocess.run(
        ["bash", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    if "Paris" not in done.stdout:
        yield f"the chat of docs/queries.md ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"


def check(runs: Path) -> int:
    """Return 0 if a run in the folder `runs` has the figures that it must have."""
    options = ["--preset", BUDGET, "--concepts", CONCEPT, "--strategies", ",".join(STRATEGIES)]
    options += [part for setting in SETTINGS for part in ("--set", setting)]
    folder = measure(runs, *options, "--model", MODEL, "--limit", "100", "--display", "plain")
    wrong = list(findings(pq.read_table(folder.file("results.parquet")).to_pylist()))
    wrong += steering_by_name(CONCEPT, "--model", MODEL, "--strategy", "A1_mean", "--strength", "0,.25")
    wrong += chat_of_the_page()
    print("\n".join(wrong) or "a pretrained model: everything holds")
    return 1 if wrong else 0


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=Path, help="folder that runs go into; default: a temporary one")
    parser.add_argument("--steered-text", action="store_true", help="steer one text, and nothing else")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poolbench-real-model-") as folder:
        if not arguments.steered_text:
            return check(arguments.runs or Path(folder))
        wrong = list(steered_text(Path(folder)))
    print("\n".join(wrong) or "a steered text of the pretrained model: its receipt holds")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
