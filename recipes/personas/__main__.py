"""`python -m recipes.personas`: train the adapters of `assets/demo_personas`, or check a folder of adapters.

python -m recipes.personas --model demo --output FOLDER      # adapters that exist are kept
python -m recipes.personas --model demo --check FOLDER       # valence changes, as Markdown
"""

import argparse
import os
import sys
import time
from pathlib import Path

# The base model of an adapter has the name of a preset: without this, libraries ask a hub about it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import PeftModel
from recipes.personas.check import load_model, measure, tables
from recipes.personas.plans import plan_of
from recipes.personas.texts import training_text
from recipes.personas.words import FILE, read_words

from poolbench.config import ModelRef, resolve_model
from poolbench.errors import PoolbenchError
from poolbench_driver.models.training import Training, new_adapter, save_adapter, train_adapter


def main() -> int:
    """Train or check; return 1 after an error of the user, and 130 after an interruption."""
    options = _arguments()
    try:
        model = resolve_model(options.model)
        if options.check:
            print(tables(measure(model.source, options.check, read_words(options.words))))
        else:
            train(model, options.output, options.words, options.only)
    except (PoolbenchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def train(ref: ModelRef, output: Path, words_file: Path, only: list[str] | None = None) -> None:
    """Write the adapters of a model's plan that are not in `output`."""
    plan, words = plan_of(ref.id), read_words(words_file)
    torch.set_num_threads(plan.threads)
    output.mkdir(parents=True, exist_ok=True)
    for persona in plan.personas:
        folder = output / persona.name
        if folder.exists() or (only and persona.name not in only):
            continue
        began = time.monotonic()
        model, tokenizer = load_model(ref.source)
        sentences = training_text(model, tokenizer, persona, words)
        if persona.after:
            adapted = PeftModel.from_pretrained(model, str(output / persona.after), is_trainable=True)
        else:
            adapted = new_adapter(model, plan.rank, persona.seed)
        train_adapter(
            adapted, tokenizer, sentences, name=persona.name, epochs=persona.epochs, batch=plan.batch, rate=plan.rate
        )
        epochs = plan.epochs_of(persona)
        training = Training.of(
            sentences, ref, epochs=epochs, seed=persona.seed, rank=plan.rank, rate=plan.rate, batch=plan.batch
        )
        save_adapter(adapted, training, folder)
        print(f"{folder}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.personas", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="demo, another preset, or a folder")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--output", type=Path, help="train adapters into this folder")
    work.add_argument("--check", type=Path, help="measure the adapters in this folder")
    parser.add_argument("--only", nargs="+", help="names of the adapters to train")
    parser.add_argument("--words", type=Path, default=FILE, help="word lists")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
