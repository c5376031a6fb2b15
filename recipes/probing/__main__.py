"""`python -m recipes.probing`: probe models on real sets, and write docs/results/holmes.md.

It needs the model that `make model` fetches, and a cluster that runs. The same command again goes on where the last
one stopped.
"""

import argparse
import sys
from pathlib import Path

from recipes.probing.shares import shares
from recipes.results import RESULTS, Report, measure, write_page

from poolbench.config import resolve_model
from poolbench.errors import PoolbenchError
from poolbench.model_folders.bases import find_base
from poolbench.settings import ClusterSettings
from poolbench_driver.pages.text import json_of, page_from
from poolbench_driver.records import Run
from poolbench_driver.series import SeriesBoard

MODELS = ("smollm2-135m", "demo")
#: Strategies whose vectors differ on texts; several of the others are variants of these.
STRATEGIES = "A1_mean,A2_max,A4_norm_weighted,A11_mean_all,P1_last_token,W2_last_k,S1_attention,L1_pos_filtered"
#: What an encoder gives: it has no last token that saw all others.
OF_ENCODERS = "A1_mean,A2_max,A4_norm_weighted,A11_mean_all,L1_pos_filtered"
LAYERS = "embedding,.5,final"
#: What is probed in whole and in a share, to see whether the order of the entrants stays.
FLASH_SETS = "zorro-*,ewt-tense,ewt-passive,ewt-sentence-length,ewt-bigram-shift,ewt-subject-number"
FLASH_STRATEGIES = "A1_mean,A2_max,P1_last_token,W2_last_k"
FLASH_EVAL = 60
#: Lines of the board that the page has.
SHOWN = 20
COMMAND = ".venv/bin/python -m recipes.probing"
INTRODUCTION = (
    "What a pretrained decoder, the demo model and an encoder carry of language, by pooling and layer, on the probing "
    "sets of real text that ship. Entrants with `random_weights` are the control: their model is not trained. [The "
    "suite](../suites/holmes.md) defines every figure."
)


def main() -> int:
    """Run and write the page. Without a cluster, say so and return 1 before any work."""
    options = _arguments()
    try:
        ClusterSettings.load()
        encoder = find_base("minilm").folder
        for model in MODELS:
            resolve_model(model)
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    real = ["--preset", "small", "--corpus", "real"]
    shared = [*real, "--flash", options.flash, "--flash-eval", str(options.flash_eval)]
    shared += [] if options.sets is None else ["--sets", options.sets]
    settings = [*shared, "--strategies", options.strategies, "--control", "random_weights"]

    def probed(model: str, *settings: str) -> Run:
        return measure(options.output, "--suite", "holmes", "--model", model, *settings, "--layers", LAYERS)

    runs = [probed(model, *settings) for model in MODELS]
    of_encoder = ",".join(name for name in options.strategies.split(",") if name in OF_ENCODERS.split(","))
    runs.append(probed(str(encoder), *shared, "--strategies", of_encoder))
    whole = [*real, "--sets", options.flash_sets, "--strategies", FLASH_STRATEGIES]
    share = ["--flash", options.flash]
    smaller: tuple[list[str], ...] = ([], share, [*share, "--flash-eval", str(options.flash_eval)])
    compared = [probed("demo", *whole, *options_of_share) for options_of_share in smaller]
    option = f" --flash-eval {options.flash_eval}" if options.flash_eval != FLASH_EVAL else ""
    # A page is read elsewhere than where the package lies that the encoder comes from.
    page = SeriesBoard.of(runs).joined
    assert page is not None
    board = json_of(page).replace(str(encoder), "minilm")
    report = Report(
        "Entrants of three models",
        f"Of train a share of {options.flash} of the groups is probed, of dev and test at most {options.flash_eval} "
        "instances each.",
        page_from(board.encode()),
        without=("opened", "sets"),
        most=SHOWN,
    )
    parts: list[Report | str] = [report, shares(compared)]
    write_page(options.page, "Linguistic probing on real sets", INTRODUCTION, COMMAND + option, parts)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.probing", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs-probing"), help="folder of the runs")
    parser.add_argument("--page", type=Path, default=RESULTS / "holmes.md", help="page to write")
    parser.add_argument("--flash", default="1/32", help="share of the training groups")
    parser.add_argument("--flash-eval", type=int, default=FLASH_EVAL, help="most instances of dev and of test")
    parser.add_argument("--strategies", default=STRATEGIES, help="pooling strategies, with commas")
    parser.add_argument("--sets", help="probing sets, with commas; all by default")
    parser.add_argument("--flash-sets", default=FLASH_SETS, help="sets that are probed in whole too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
