"""Scorers of the shape that mode head trains, and the cost of several of them against one."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from common import turns
from transformers.utils import logging as transformers_logging

from poolbench.model_folders.bases import find_base
from poolbench_scorer.classifiers.scorer import Head, Scorer, load_classifier, pick_device, read_tokens, shared_encoder
from poolbench_scorer.classifiers.scoring import score_texts

NUM_SCORERS = (1, 3, 8, 17)


def random_scorers(num: int) -> dict[str, Scorer]:
    """Return scorers on MiniLM with untrained heads: the work of scoring does not depend on weights."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    base, device = find_base("minilm"), pick_device()
    scorers = {}
    for index in range(num):
        torch.manual_seed(index)
        model = load_classifier(base, num_labels=2)
        depth = model.config.num_hidden_layers - 1
        head = Head(model, depth).to(device).eval().requires_grad_(False)
        encoder, encoder_id = shared_encoder(base, depth, device), f"{base.revision}/{depth}"
        scorers[f"s{index}"] = Scorer(f"s{index}", encoder, encoder_id, head, read_tokens(base), 1.0)
    return scorers


def shared_pass(texts: Sequence[str], rounds: int = 5) -> dict[str, Any]:
    """Return the seconds of K scorers on the same texts, in interleaved rounds, and each K against one scorer."""
    scorers = random_scorers(max(NUM_SCORERS))
    subsets = {num: dict(list(scorers.items())[:num]) for num in NUM_SCORERS}
    score_texts(subsets[1], texts)  # warms up
    taken: dict[int, list[float]] = {num: [] for num in NUM_SCORERS}
    for num in turns(NUM_SCORERS, rounds):
        began = time.perf_counter()
        score_texts(subsets[num], texts)
        taken[num].append(time.perf_counter() - began)
    against_one = {
        f"k{num}": statistics.median(many / one for many, one in zip(taken[num], taken[1], strict=True))
        for num in NUM_SCORERS[1:]
    }
    return {
        "num_texts": len(texts),
        "seconds": {f"k{num}": statistics.median(values) for num, values in taken.items()},
        "against_one": against_one,
    }
