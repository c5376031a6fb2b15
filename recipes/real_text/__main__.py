"""`make real-text`: what pooling does on real text in a pretrained model, with and without attention sinks.

It measures all concepts of the corpus that ships which pass their audit, judges minimal pairs under steering, and
writes the page of results. It needs a cluster that runs. The same command again goes on where the last one stopped.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from recipes.real_text.findings import gated
from recipes.real_text.page import Measured, SteeredPairs, page
from recipes.real_text.pairs import ask_harness, judge, read_pairs
from recipes.real_text.steps import export, measure

from poolbench.config import resolve_model
from poolbench.errors import ConfigError
from poolbench.settings import ClusterSettings
from poolbench_driver.cluster.session import open_session
from poolbench_driver.records import Run
from poolbench_driver.suites.poolbench.presets import FORWARD_STRATEGIES

MODEL = "smollm2-135m"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / f"{MODEL}.md"
#: 120 train and test passages of each class: what two cores can read in about two hours.
BUDGET = "small"
#: Strategies of the card and of its published table, which differ in some definitions.
FORWARD = ",".join(FORWARD_STRATEGIES) + (
    ",P3_first_content,A7_random,A8_unit_mean,W2_last_4,W2_last_8,S4_sif,L7_subword_root,L8_svo"
)
STRATEGIES = f"{FORWARD},S2_gradient,S3_iti_probe"
LAYERS = ".5,.75,1.0"


def main() -> int:
    """Run and write the page. Without a cluster, say so and return 1 before any work."""
    args = _arguments()
    try:
        ClusterSettings.load()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    shared = ["--model", MODEL, "--preset", BUDGET, "--concepts", args.concepts, "--layers", LAYERS]
    shared += [] if args.limit is None else ["--limit", str(args.limit)]
    runs = [
        measure(args.output, *shared, "--strategies", args.strategies or strategies, *options)
        for strategies, options in ((STRATEGIES, ()), (FORWARD, ("--metrics", "d1", "--set", "sinks=include")))
    ]
    option = "" if args.concepts == "all" else f" --concepts {args.concepts}"
    command = f".venv/bin/python -m recipes.real_text{option}" if option else "make real-text"
    args.page.write_text(page(Measured(runs[0], runs[1], steered_pairs(runs[0], args.output), command)), "utf-8")
    print(f"page: {args.page}")
    return 0


def steered_pairs(run: Run, output: Path) -> SteeredPairs | None:
    """Judge minimal pairs under the direction that steers best; return None without a direction."""
    rows = pq.read_table(run.file("results.parquet")).to_pylist()
    best = max(steered(rows), key=lambda row: row["value"], default=None)
    if best is None:
        return None
    concept, strategy, layer = best["concept"], best["strategy"], best["layer"]
    pairs = read_pairs()
    print(f"{len(pairs)} minimal pairs under {concept} by {strategy}", flush=True)
    direction = np.load(export(run, output / "directions", concept, strategy, layer))
    cluster, folder = ClusterSettings.load(), Path(resolve_model(MODEL).source)
    harness = ask_harness(pairs, output / "harness", f"{cluster.http_address}/steerer", cluster.token, MODEL, folder)
    judged = []
    for answer in judge(open_session().services, pairs, MODEL, direction, layer):
        print(
            f"strength {answer.strength:g}: accuracy {answer.accuracy:.3f}, perplexity {answer.perplexity:.1f}",
            flush=True,
        )
        judged.append(answer)
    return SteeredPairs((concept, strategy, layer), len(pairs), judged, harness.accuracy)


def steered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of gains by steering that have a value, of concepts whose scorer passed."""
    passed = set(gated(rows))
    return [
        row for row in rows if row["metric"] == "d2.best_gain" and row["value"] is not None and row["concept"] in passed
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs-real-text"), help="folder of runs")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--concepts", default="all", help="ids with commas; default: all that pass their audit")
    parser.add_argument("--strategies", help="with commas, for a trial")
    parser.add_argument("--limit", type=int, help="train and test passages of a concept, for a trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
