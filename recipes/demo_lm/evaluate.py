"""Held-out loss of the demo language model and its n-gram baselines; writes model, `metrics.json` and `card.md`.

Usage: `python -m recipes.demo_lm.evaluate WORK OUT [--weights final|last|mean|none]`.

The stored model (bfloat16 weights, run in float32) is judged on the held-out streams in chunks of 512 tokens; the
first token of a chunk is not scored, and the n-gram models are scored on the same positions with their full
context. `--weights mean` stores the running mean of the weights instead of the last ones, to inspect a run
before its learning rate has decreased; `none` judges the model that OUT already holds.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from recipes.demo_lm.card import card_text
from recipes.demo_lm.model import build, save
from recipes.demo_lm.ngrams import KneserNey, loss
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

CHUNK = 512
KINDS = ("real", "planted", "carried")
Losses = dict[str, dict[str, float]]
NAMES = {1: "unigram", 2: "bigram", 3: "trigram"}


def scored_positions(tokens: np.ndarray) -> np.ndarray:
    """Return all positions of whole chunks but the first of each (and, for the trigram, the text's second)."""
    positions = np.arange(len(tokens))
    scored: np.ndarray = (positions % CHUNK != 0) & (positions < len(tokens) // CHUNK * CHUNK)
    scored[:2] = False
    return scored


def model_loss(model: LlamaForCausalLM, tokens: np.ndarray) -> float:
    """Return the mean loss (nats per token) in float32."""
    chunks = torch.from_numpy(tokens[: len(tokens) // CHUNK * CHUNK].reshape(-1, CHUNK).astype(np.int64))
    total, number = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(chunks), 8):
            batch = chunks[start : start + 8]
            logits = model(batch).logits[:, :-1].flatten(0, 1)
            losses = functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="none")
            # The text's second token has no trigram context and is left out for every model.
            losses = losses[1:] if start == 0 else losses
            total, number = total + float(losses.sum()), number + len(losses)
    return total / number


def baseline_losses(work: Path, held_out: dict[str, np.ndarray], vocabulary: int) -> Losses:
    """Return the losses of n-gram models trained on the same text as the language model; cached in WORK."""
    path = work / "baselines.json"
    streams = {kind: np.load(work / f"{kind}_train.npy") for kind in held_out}
    sizes = {kind: [len(streams[kind]), len(held_out[kind])] for kind in held_out}
    if path.is_file() and (cache := json.loads(path.read_text())).get("num_tokens") == sizes:
        cached_losses: Losses = cache["losses"]
        return cached_losses
    train = np.concatenate(list(streams.values()))
    losses: Losses = {kind: {} for kind in held_out}
    for order, name in NAMES.items():
        model = KneserNey(train, order, vocabulary)
        for kind, tokens in held_out.items():
            losses[kind][name] = round(loss(model, tokens, scored_positions(tokens)), 4)
    path.write_text(json.dumps({"num_tokens": sizes, "losses": losses}, indent=2) + "\n")
    return losses


def store(work: Path, out: Path, weights: str) -> dict[str, float]:
    """Save the model in the format of Transformers and vLLM; return the run's counters."""
    state = torch.load(work / ("final.pt" if weights == "final" else "last.pt"))
    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")
    model = build(tokenizer, seed=0)
    model.load_state_dict(state["mean" if weights == "mean" else "model"], strict=False)
    out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, out)
    num_tokens, spent_s, num_steps = state["counters"]
    return {"num_tokens": num_tokens, "wall_s": round(spent_s), "num_steps": num_steps}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", choices=("final", "last", "mean", "none"), default="final")
    options = parser.parse_args()
    run = {} if options.weights == "none" else store(options.work, options.out, options.weights)
    model = AutoModelForCausalLM.from_pretrained(options.out, dtype=torch.float32).eval()
    held_out = {kind: np.load(options.work / f"{kind}_held_out.npy") for kind in KINDS}
    losses = baseline_losses(options.work, held_out, model.config.vocab_size)
    for kind, tokens in held_out.items():
        losses[kind]["demo_lm"] = round(model_loss(model, tokens), 4)
    texts = {kind: json.loads((options.work / f"{kind}.json").read_text()) for kind in held_out}
    num_parameters = sum(weight.numel() for weight in model.parameters())
    metrics = {"held_out_nats_per_token": losses, "num_parameters": num_parameters, "run": run, "texts": texts}
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    (options.out / "card.md").write_text(card_text(metrics))
    print(json.dumps(losses, indent=2))


if __name__ == "__main__":
    main()
