"""Fine-tunes of a model on corrupted text: LoRA adapters, one for each share of the words that is out of place.

Zhu et al. (2022), "On the data requirements of probing", go on training BERT on paragraphs of WikiText-2 whose words
are shuffled, for 200, 800 and 3,200 steps of 16 paragraphs, with masked words as targets. Here the number of steps is
the same for all, and the share of shuffled words differs; the model is a decoder, so the next word is the target.
"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from recipes.personas.check import load_model

from poolbench.config import ModelRef
from poolbench_driver.models.training import Training, mean_loss, new_adapter, save_adapter, train_adapter

#: Share of the words of each training text that is put into a random order, by adapter; 0 is the control.
SHARES = {"clean": 0.0, "scrambled-25": 0.25, "scrambled-100": 1.0}
NUM_STEPS = 200
BATCH, _WORDS = 8, 32
_RANK, _RATE, _SEED = 8, 5e-4, 0


def make_models(
    ref: ModelRef, output: Path, names: Iterable[str], pieces: tuple[Sequence[str], Sequence[str]], num_steps: int
) -> None:
    """Write adapters into `output`, each with its held-out losses in a file beside it.

    Args:
        names: Adapters to make, of `SHARES`.
        pieces: Texts to train on, and held-out ones; of each the first words are read.
    """
    training, held_out = ([" ".join(piece.split()[:_WORDS]) for piece in part] for part in pieces)
    judged = {"clean": held_out, "scrambled": scrambled(held_out, 1.0, _SEED + 1)}
    output.mkdir(parents=True, exist_ok=True)
    for name in names:
        began = time.monotonic()
        model, tokenizer = load_model(ref.source)
        adapted = new_adapter(model, _RANK, _SEED)
        before = {kind: mean_loss(adapted, tokenizer, texts, BATCH) for kind, texts in judged.items()}
        texts = scrambled(training[: BATCH * num_steps], SHARES[name], _SEED)
        train_adapter(adapted, tokenizer, texts, name=name, epochs=1, batch=BATCH, rate=_RATE)
        after = {kind: mean_loss(adapted, tokenizer, texts, BATCH) for kind, texts in judged.items()}
        changes = ", ".join(f"{before[kind]:.3f} to {after[kind]:.3f} on {kind} text" for kind in judged)
        print(f"{name}: held-out loss {changes}; {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        losses = {"steps": num_steps, "before": before, "after": after}
        (output / f"{name}.json").write_text(json.dumps(losses, indent=1) + "\n", "utf-8")
        facts = Training.of(texts, ref, epochs=1, seed=_SEED, rank=_RANK, rate=_RATE, batch=BATCH)
        save_adapter(adapted, facts, output / name)


def scrambled(texts: Sequence[str], share: float, seed: int) -> list[str]:
    """Return the texts with a share of the words of each, drawn at random, in a random order."""
    rng = Random(seed)
    changed = list[str]()
    for text in texts:
        words = text.split()
        places = rng.sample(range(len(words)), round(share * len(words)))
        moved = [words[place] for place in places]
        rng.shuffle(moved)
        for place, word in zip(places, moved, strict=True):
            words[place] = word
        changed.append(" ".join(words))
    return changed
