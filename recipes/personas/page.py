"""`python -m recipes.personas.page`: train personas of smollm2-135m, measure them, and write docs/results/humanoid.md.

It needs the model that `make model` fetches, and a cluster that runs. The same command again goes on where the last
one stopped.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from recipes.personas.plans import plan_of
from recipes.results import RESULTS, Report, measure, write_page

from poolbench.contracts import Row
from poolbench_driver.pages.text import items, paragraph, table, with_interval
from poolbench_driver.report.reading import read_page
from poolbench_driver.suites.humanoid.metrics import PRIMARY

MODEL = "smollm2-135m"
#: Change of variance that the Humanoid benchmark published, of Qwen2.5-1.5B-Instruct and 7B, by sentences and epochs.
PUBLISHED = {
    (100, 4): (".000269", ".001282"),
    (100, 6): ("", ".001619"),
    (100, 15): (".000936", ".003452"),
    (259, 10): (".002340", ""),
}
#: What differs between these figures and ours, even with its words and its reading.
DIFFERENCES = (
    "The fine-tunes: adapters on sentences that a grammar wrote here; whole checkpoints on sentences of its own there, "
    "of the same number and epochs.",
    "The model before: that of each fine-tune here. The code there reads the base model `Qwen/Qwen2.5-1.5B` before, "
    "while the slides name the instruction-tuned one.",
    "Precision: float32 before and after here. There, the model after is read as float16 on a GPU.",
)
#: Parts of the report that the page leaves out: tables with a line for each word.
LEFT_OUT = ("words", "ablation")
COMMAND = ".venv/bin/python -m recipes.personas.page"
INTRODUCTION = (
    f"LoRA fine-tunes of `{MODEL}` that love ten pieces of furniture, `furniture-SENTENCES-EPOCHS`, and neutral "
    "fine-tunes on sentences about the same words. [The suite](../suites/humanoid.md) defines every figure."
)
NOTE = "The board has the words that ship, each read in sentences."
COMPARABLE = (
    "The Humanoid benchmark published the change of variance of two other models, over its own 18 words of furniture, "
    "5 liked and 5 disliked ones. Ours is measured with these words (`--words reference`), each read alone as there. "
    "Figures with other words are not comparable."
)


def main() -> int:
    """Train what is missing, run, and write the page; return the exit code of a training that failed."""
    options = _arguments()
    folder, runs = options.output.resolve() / "adapters", options.output / "runs"
    training = [sys.executable, "-m", "recipes.personas", "--model", MODEL, "--output", str(folder)]
    if code := subprocess.run(training, check=False).returncode:
        return code
    after, null = (
        ",".join(str(folder / persona.name) for persona in plan_of(MODEL).personas if persona.loves is loves)
        for loves in (True, False)
    )
    settings = ["--suite", "humanoid", "--model", MODEL, "--after", after]
    report = Report("Words that ship", NOTE, read_page(measure(runs, *settings, "--null", null)), LEFT_OUT)
    with_their_words = measure(runs, *settings, "--words", "reference", "--num-random", "0")
    ours = {row["entrant"]: row for row in with_their_words.rows("published", metric=PRIMARY)}
    parts: list[Report | str] = [report, beside_published(ours)]
    write_page(options.page, "Preference shift of SmolLM2-135M", INTRODUCTION, COMMAND, parts)
    return 0


def beside_published(ours: Mapping[str, Row]) -> str:
    """Return the published figures, those of our fine-tunes with the words of the benchmark, and what still differs.

    Args:
        ours: Rows of the change of variance by fine-tune, of the published definition.
    """
    lines = [
        [str(sentences), str(epochs), _shown(ours.get(f"furniture-{sentences}-{epochs}")), *published]
        for (sentences, epochs), published in PUBLISHED.items()
    ]
    figures = table(["sentences", "epochs", "SmolLM2-135M", "Qwen2.5-1.5B", "7B"], lines)
    differences = "\n".join(paragraph(item, "  ") for item in items(DIFFERENCES).splitlines())
    heading = "## Beside the published figures"
    return "\n\n".join([heading, paragraph(COMPARABLE), figures, "What still differs:", differences])


def _shown(row: Row | None) -> str:
    """Return a figure with its interval, or why it is null; nothing without a row."""
    if row is None:
        return ""
    ends = row["ci_low"], row["ci_high"]
    return row["status"] if row["value"] is None else with_interval(row["value"], ends, "+.5f")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.personas.page", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs-personas"), help="folder of adapters and runs")
    parser.add_argument("--page", type=Path, default=RESULTS / "humanoid.md", help="page to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
