"""`python -m recipes.saes.page`: train autoencoders of smollm2-135m, measure them, and write docs/results/ce-bench.md.

It needs the model that `make model` fetches, and a cluster that runs. The same command again goes on where the last
one stopped.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from recipes.results import RESULTS, Report, measure, write_page
from recipes.saes.plans import PRETRAINED

from poolbench_driver.report.reading import read_page

MODEL = "smollm2-135m"
STORIES = {
    "real": ("Pairs of real passages", "Pairs of passages of the corpus that ships."),
    "planted": ("Planted stories", "Stories that a grammar writes: a diagnostic, never ranked with real text."),
}
#: Parts of the reports that the page leaves out: tables with a line for each subject, pair or feature.
LEFT_OUT = ("published", "size", "subject", "subjects", "features")
COMMAND = ".venv/bin/python -m recipes.saes.page"


def main() -> int:
    """Train what is missing, run, and write the page; return the exit code of a training that failed."""
    options = _arguments()
    folder = options.output / "autoencoders"
    if not (folder / "quality.json").exists():  # it is written last
        training = [sys.executable, "-m", "recipes.saes", "--model", MODEL, "--output", str(folder)]
        if code := subprocess.run([*training, "--dtype", options.dtype], check=False).returncode:
            return code
    settings = ["--suite", "ce-bench", "--model", MODEL, "--saes", str(folder)]
    reports = [
        Report(heading, note, read_page(measure(options.output / "runs", *settings, "--stories", stories)), LEFT_OUT)
        for stories, (heading, note) in STORIES.items()
    ]
    plan = PRETRAINED
    introduction = (
        f"Autoencoders of `{MODEL}`, {' and '.join(plan.architectures)} with "
        f"{' and '.join(f'{width:,}' for width in plan.widths)} features, at the output of the block of half depth, "
        f"trained on {plan.num_tokens:,} tokens of the corpus that ships for {plan.l0} features per token. "
        "[The suite](../suites/ce-bench.md) defines every figure, and `leaderboard` prints those of each subject."
    )
    command = COMMAND if options.dtype == "float32" else f"{COMMAND} --dtype {options.dtype}"
    write_page(options.page, "Sparse autoencoders of SmolLM2-135M", introduction, command, reports)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.saes.page", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs-saes"), help="folder of autoencoders and runs")
    parser.add_argument("--page", type=Path, default=RESULTS / "ce-bench.md", help="page to write")
    parser.add_argument("--dtype", default="float32", help="of the products in training: float32, or bfloat16")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
