"""`python -m recipes.data_requirements`: how much data comparisons of probes need, on the sets that ship.

python -m recipes.data_requirements models      # fine-tunes on corrupted text; those that exist are kept
python -m recipes.data_requirements page        # these, the runs, and docs/results/data-requirements.md

Both need the model that `make model` fetches, and the page a cluster that runs. The same command again goes on where
the last one stopped.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# The base model of an adapter has the name of a preset: without this, libraries ask a hub about it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from recipes.data_requirements.claims import NOISE, claims_of, claims_table
from recipes.data_requirements.lengths import LENGTHS, write_lengths
from recipes.data_requirements.models import NUM_STEPS, SHARES, make_models
from recipes.data_requirements.texts import texts_of
from recipes.results import RESULTS, Report, measure, write_page

from poolbench.config import resolve_model
from poolbench.errors import PoolbenchError
from poolbench.settings import ClusterSettings
from poolbench_driver.records import Run
from poolbench_driver.report.reading import read_page
from poolbench_driver.suites.data_requirements.report import SetComparison, view_of

MODEL = "smollm2-135m"
SETS = "ewt-bigram-shift,ewt-coordination-inversion,ewt-tense"
#: Layer whose states are read, and standard deviations of the noise study.
LAYER, DEVIATIONS = "0.5", (0.01, 0.03, 0.1, 0.3, 1, 3)
#: Parts of the reports that the page leaves out: tables with a line for each size.
LEFT_OUT = ("sizes",)
SIDES = (
    "The states of the model are compared with those of three fine-tunes (LoRA adapters, trained on passages that ship "
    "whose words are put into a random order: none for `clean`, a quarter of each text for `scrambled-25`, all for "
    "`scrambled-100`), with static word vectors, and with a probe of 20 hidden units."
)


def main() -> int:
    """Make the models or the page; return 1 after an error of the user, and 130 after an interruption."""
    options = _arguments()
    models = options.output / "models"
    try:
        if options.what == "page":
            ClusterSettings.load()
        if missing := [name for name in SHARES if not (models / name).exists()]:
            make_models(resolve_model(MODEL), models, missing, texts_of(), options.steps)
        if options.what == "page":
            make_page(options, models.resolve())
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def make_page(options: argparse.Namespace, models: Path) -> None:
    """Run the comparisons that are not finished, and write the page with its picture.

    Args:
        models: Folder of the fine-tunes.
    """
    seconds = second_sides(models)
    lengths = write_lengths(options.output / "lengths")
    of_sets = compare(options, "real", options.sets, seconds)
    of_lengths = compare(options, str(lengths), LENGTHS, seconds)
    of_noise = compare(options, "real", options.noise_set, [f"layer={LAYER},noise={noise}" for noise in DEVIATIONS])
    noisy = sorted(comparisons_of(of_noise), key=lambda comparison: float(comparison.name.removeprefix(NOISE)))
    claims = list(claims_of([*comparisons_of(of_sets), *comparisons_of(of_lengths)], noisy))
    seeds = "five seeds" if options.seeds is None else f"seeds {options.seeds}"
    introduction = (
        f"Comparisons of probing configurations of `{MODEL}` (mean over tokens, half depth) on sets that ship: "
        f"{seeds}, six folds in rotation, and samples of several sizes. "
        "[The suite](../suites/data-requirements.md) defines every figure."
    )
    sections = (
        ("Sets of a treebank", SIDES, of_sets),
        ("Sentence length in six classes", "The same on the classes of SentEval.", of_lengths),
        ("States with noise", "Normal noise is added to every number of the states.", of_noise),
    )
    reports = [Report(heading, note, read_page(run), LEFT_OUT) for heading, note, run in sections]
    command = ".venv/bin/python -m recipes.data_requirements page"
    write_page(
        options.page,
        "How many examples comparisons of probes need",
        introduction,
        command,
        [claims_table(claims), *reports],
    )


def second_sides(models: Path) -> list[str]:
    """Return what the states of the model are compared with: fine-tunes, static words, and an MLP."""
    fine_tunes = [f"adapter={models / name},layer={LAYER}" for name in SHARES]
    return [*fine_tunes, "layer=embedding", f"layer={LAYER},hidden=20"]


def compare(options: argparse.Namespace, corpus: str, sets: str, seconds: Sequence[str]) -> Run:
    """Run the states of the model against other configurations, and return the run."""
    settings = ["--suite", "data-requirements", "--model", MODEL, "--corpus", corpus, "--sets", sets]
    settings += ["--compare", f"layer={LAYER}", *(part for second in seconds for part in ("--with", second))]
    for name in ("seeds", "sizes"):
        settings += [] if (value := getattr(options, name)) is None else [f"--{name}", value]
    return measure(options.output / "runs", *settings)


def comparisons_of(run: Run) -> Sequence[SetComparison]:
    """Return the comparisons of a run."""
    return view_of(run).comparisons


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.data_requirements", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("models", "page"), help="what to make")
    parser.add_argument("--output", type=Path, default=Path("runs-data-requirements"), help="folder of models and runs")
    parser.add_argument("--page", type=Path, default=RESULTS / "data-requirements.md", help="page to write")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="training steps of each fine-tune")
    parser.add_argument("--sets", default=SETS, help="probing sets, with commas, besides sentence length")
    parser.add_argument("--noise-set", default="ewt-tense", help="set of the noise study")
    parser.add_argument("--seeds", help="seeds of samples and folds, with commas; five by default")
    parser.add_argument("--sizes", help="examples of each sample, with commas; by default all of a set, and halves")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
