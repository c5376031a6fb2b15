"""`make real-text`: what pooling does on real text in a pretrained model, with and without attention sinks.

It measures all concepts of the corpus that ships which pass their audit, and writes the page of results. It needs a
cluster that runs. The same command again goes on where the last one stopped.
"""

import argparse
import sys
from pathlib import Path

from recipes.results import RESULTS, Report, measure, write_page

from poolbench.errors import ConfigError
from poolbench.settings import ClusterSettings
from poolbench_driver.api import loading
from poolbench_driver.comparison import changes_page
from poolbench_driver.records import Run
from poolbench_driver.report.reading import read_page
from poolbench_driver.suites.poolbench.presets import FORWARD_STRATEGIES

MODEL = "smollm2-135m"
#: 120 train and test passages of each class: what two cores can read in about two hours.
BUDGET = "small"
#: Strategies of the card and of its published table, which differ in some definitions.
FORWARD = ",".join(FORWARD_STRATEGIES) + (
    ",P3_first_content,A7_random,A8_unit_mean,W2_last_4,W2_last_8,S4_sif,L7_subword_root,L8_svo"
)
STRATEGIES = f"{FORWARD},S2_gradient,S3_iti_probe"
LAYERS = ".5,.75,1.0"
PROBING = "d1.auroc"
#: Parts of the report that the page leaves out: tables with a line for each pair of strategies, or for each check.
LEFT_OUT = ("cosines", "curves", "checks", "coverage", "nulls")
INTRODUCTION = (
    "A pretrained model on the concepts of [the corpus that ships](../../assets/real_corpus/card.md) which pass their "
    "audit: which pooling is best for probing and for steering it, and what attention sinks do to the answer."
)
CANNOT = (
    "Labels come from rules, so that a figure says how well a strategy finds what the rule finds. The model is small, "
    "and its weights were dequantised from 4 bits: which strategy is best for a large model does not follow."
)
SINKS = (
    "Tokens whose norm exceeds ten times the median of their passage are left out by default "
    "([why](../metrics.md#attention-sinks)), as in the first of the two runs. In the second they stay in the vectors, "
    "as in the published protocol."
)


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
    write_page(args.page, "Real text, SmolLM2-135M", INTRODUCTION, command, reports(*runs))
    return 0


def reports(run: Run, with_sinks: Run) -> list[Report]:
    """Return the sections of the page.

    Args:
        run: D1 to D3, without sinks in the vectors.
        with_sinks: D1 with sinks in the vectors, of strategies that need no backward pass.
    """
    changes = loading.compare(run, with_sinks, metrics=[PROBING]).changes
    return [
        Report("Concepts and strategies", CANNOT, read_page(run), LEFT_OUT),
        Report("With attention sinks", SINKS, changes_page([run, with_sinks], changes, everything=False), ("texts",)),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs-real-text"), help="folder of runs")
    parser.add_argument("--page", type=Path, default=RESULTS / f"{MODEL}.md", help="page to write")
    parser.add_argument("--concepts", default="all", help="ids with commas; default: all that pass their audit")
    parser.add_argument("--strategies", help="with commas, for a trial")
    parser.add_argument("--limit", type=int, help="train and test passages of a concept, for a trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
