"""Train the demo language model.

Usage: `python -m recipes.demo_lm.train WORK --minutes 60 --threads 1`. Reads what `prepare.py` wrote; writes
`last.pt` (weights and their running mean, every few minutes) and `log.jsonl` to WORK, and at the end `final.pt`.

Hidden matrices are trained by Muon, the embedding and the norms by AdamW; the learning rate follows the share of
the time budget that is used up (warm-up, then a cosine to zero), so that a run ends on time on a busy machine.
Batches are chunks of the packed streams, each kind of text in a fixed proportion. The last part of the run uses
longer chunks: the model must know positions up to a passage's length.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from recipes.demo_lm.model import build
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM

PEAK_MUON, PEAK_ADAM = 0.02, 3e-3
BATCH_TOKENS = 4096
WARMUP, MEAN_DECAY = 0.02, 0.998
SHORT, LONG, LONG_FROM = 256, 512, 0.6
#: Share of the chunks of each kind of text.
SHARES = {"real": 0.5, "planted": 0.12, "carried": 0.38}


@dataclass
class Stream:
    """Chunks of one packed token stream, each pass in a new order and from a new offset."""

    tokens: np.ndarray
    rng: np.random.Generator

    def chunks(self, length: int) -> Iterator[np.ndarray]:
        """Yield chunks of `length` tokens without end."""
        while True:
            start = int(self.rng.integers(length))
            number = (len(self.tokens) - start) // length
            for index in self.rng.permutation(number):
                first = start + index * length
                yield self.tokens[first : first + length]


class Batches:
    """Batches of a fixed number of tokens with a fixed share of each kind of text on average."""

    def __init__(self, work: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.streams = [Stream(np.load(work / f"{kind}_train.npy"), self.rng) for kind in SHARES]
        self.readers: dict[int, list[Iterator[np.ndarray]]] = {}

    def next(self, length: int) -> torch.Tensor:
        """Return token ids [BATCH_TOKENS // length, length]."""
        readers = self.readers.setdefault(length, [stream.chunks(length) for stream in self.streams])
        picks = self.rng.choice(len(readers), BATCH_TOKENS // length, p=list(SHARES.values()))
        return torch.from_numpy(np.stack([next(readers[pick]) for pick in picks]).astype(np.int64))


def loss_of(model: LlamaForCausalLM, tokens_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss in nats, with matrix products in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(tokens_BT).last_hidden_state[:, :-1]
        logits = functional.linear(hidden, model.lm_head.weight)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens_BT[:, 1:].flatten())


# Compiled with plain attention a step takes 22 % less processor time than eager with fused attention.
fast_loss_of = torch.compile(loss_of, dynamic=False)


def optimizers_of(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the blocks' matrices and AdamW for the rest; `peak` of a group is its highest learning rate."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    embedding = {"params": [model.model.embed_tokens.weight], "weight_decay": 0.01}
    muon = torch.optim.Muon(matrices, lr=PEAK_MUON, weight_decay=0.05)
    adam = torch.optim.AdamW([embedding, {"params": others, "weight_decay": 0.0}], PEAK_ADAM, (0.9, 0.98), fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def rate(progress: float) -> float:
    """Return the learning rate as a share of its peak: linear warm-up, then a cosine to zero."""
    if progress < WARMUP:
        return max(progress / WARMUP, 0.02)
    return 0.5 * (1 + math.cos(math.pi * min((progress - WARMUP) / (1 - WARMUP), 1.0)))


def held_out_loss(model: LlamaForCausalLM, tokens: np.ndarray, num_chunks: int) -> float:
    """Return nats per token over the first chunks of a held-out stream, without the first token of each chunk."""
    chunks = torch.from_numpy(tokens[: num_chunks * LONG].reshape(-1, LONG).astype(np.int64))
    with torch.no_grad():
        return float(np.mean([float(fast_loss_of(model, batch)) for batch in chunks.split(8)]))


@dataclass
class Run:
    """The state of one training run."""

    work: Path
    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    mean: dict[str, torch.Tensor]
    num_tokens: int = 0
    spent_s: float = 0.0
    num_steps: int = 0

    def step(self, tokens_BT: torch.Tensor, progress: float) -> float:
        """Update the weights once and return the loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate(progress)
        loss = fast_loss_of(self.model, tokens_BT)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for name, weight in self.model.named_parameters():
            self.mean[name].lerp_(weight.detach(), 1 - min(MEAN_DECAY, self.num_steps / (self.num_steps + 10)))
        self.num_tokens += tokens_BT.numel()
        self.num_steps += 1
        return float(loss)

    def save(self, name: str) -> None:
        """Save weights, running mean, optimiser states and counters; replace the file atomically."""
        state = {
            "model": self.model.state_dict(),
            "mean": self.mean,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": (self.num_tokens, self.spent_s, self.num_steps),
        }
        torch.save(state, self.work / f"{name}.part")
        (self.work / f"{name}.part").replace(self.work / f"{name}.pt")

    def resume(self) -> None:
        """Go on from `last.pt`."""
        state = torch.load(self.work / "last.pt")
        self.model.load_state_dict(state["model"])
        self.mean = state["mean"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.num_tokens, self.spent_s, self.num_steps = state["counters"]


def start(work: Path, seed: int) -> Run:
    """Return a run that has not begun."""
    model = build(AutoTokenizer.from_pretrained(work / "tokenizer"), seed)
    model.set_attn_implementation("eager")
    mean = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return Run(work, model, optimizers_of(model), mean)


def train(run: Run, batches: Batches, minutes: float, report_s: float = 120.0) -> None:
    """Update until the time budget is used up; report and save every `report_s` seconds."""
    held_out = {kind: np.load(run.work / f"{kind}_held_out.npy") for kind in SHARES}
    last, reported, recent = time.monotonic(), run.spent_s, []
    while (progress := run.spent_s / (60 * minutes)) < 1:
        recent.append(run.step(batches.next(SHORT if progress < LONG_FROM else LONG), progress))
        now = time.monotonic()
        run.spent_s, last = run.spent_s + now - last, now
        if run.spent_s - reported >= report_s:
            reported = run.spent_s
            losses = {kind: round(held_out_loss(run.model, tokens, 24), 3) for kind, tokens in held_out.items()}
            row = {"s": round(run.spent_s), "tokens": run.num_tokens, "train": round(float(np.mean(recent)), 3)}
            with (run.work / "log.jsonl").open("a") as log:
                log.write(json.dumps(row | losses) + "\n")
            run.save("last")
            recent = []
    run.save("final")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = start(options.work, options.seed)
    if options.resume:
        run.resume()
    train(run, Batches(options.work, options.seed + run.num_steps), options.minutes)


if __name__ == "__main__":
    main()
