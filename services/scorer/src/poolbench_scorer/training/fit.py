"""Fine-tuning of one classifier on windows: batches of couples, warm-up, the best epoch by validation."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from poolbench.cancellation import check_cancelled
from poolbench.steps.scorer import TrainParams
from poolbench_scorer.classifiers.windows import Window, length_batches, pad_ids, pad_states

#: Couples are sorted by length in chunks of this many batches, so that batches pad little yet stay random.
_CHUNK_BATCHES = 8
_EVAL_TOKENS = 4096
_MAX_GRAD_NORM = 1.0

Batcher = Callable[[Sequence[int]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Examples:
    """Windows with labels and couples.

    A couple is a positive and a negative window that are always in one batch. If they are cut from a passage and its
    rewrite, everything but the concept cancels out of the batch's gradient. Without couples, a few hundred passages are
    too few to learn a concept that single words carry.
    """

    windows: list[Window]
    labels: np.ndarray
    couples: list[tuple[int, int]]


@dataclass(frozen=True)
class Epoch:
    """The results of an epoch: mean training loss, validation AUROC and validation NLL."""

    train_loss: float
    validation_auroc: float
    validation_nll: float


def frozen_batcher(encoder: nn.Module, windows: Sequence[Window], device: torch.device) -> Batcher:
    """Compute the states of all windows once with the frozen encoder. Return a function that batches them."""
    states: list[Tensor] = [torch.empty(0)] * len(windows)
    with torch.no_grad():
        for batch in length_batches(list(map(len, windows)), _EVAL_TOKENS):
            check_cancelled()
            ids_BT, mask_BT = pad_ids([windows[index] for index in batch], device)
            for index, hidden_TD in zip(batch, encoder(ids_BT, mask_BT), strict=True):
                states[index] = hidden_TD[: len(windows[index])].clone()
    return lambda batch: pad_states([states[index] for index in batch])


def trained_batcher(encoder: nn.Module, windows: Sequence[Window], device: torch.device) -> Batcher:
    """Return a function that computes the states of a batch at each call.

    Gradients flow through the encoder if its parameters require gradients.
    """

    def states(batch: Sequence[int]) -> tuple[Tensor, Tensor]:
        ids_BT, mask_BT = pad_ids([windows[index] for index in batch], device)
        return encoder(ids_BT, mask_BT), mask_BT

    return states


def fit(
    model: nn.Module,
    head: nn.Module,
    batcher: Batcher,
    examples: Examples,
    validate: Callable[[], tuple[float, float]],
    params: TrainParams,
) -> list[Epoch]:
    """Train the parameters of `model` that require gradients, and restore the best epoch.

    At the end, the head is in evaluation mode. Training stops early after `params.patience` epochs without improvement.

    Args:
        model: All modules of the classifier. Parameters that do not require gradients do not change.
        batcher: Function from indices of windows to their states and mask.
        validate: Function that returns the (AUROC, NLL) of the head's current state.
        params: Resolved settings, with epochs, learning rate and batch size filled in.

    Reference: AdamW of Loshchilov & Hutter (2019); linear warm-up and decay as in Devlin et al. (2019).
    """
    assert params.epochs and params.learning_rate and params.batch_size, "resolve the parameters first"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=params.learning_rate, weight_decay=params.weight_decay, fused=True)
    num_steps = params.epochs * math.ceil(2 * len(examples.couples) / params.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_decay(num_steps, params.warmup_share))
    rng = np.random.default_rng(params.seed)
    epochs: list[Epoch] = []
    best = copy.deepcopy(model.state_dict())
    for _ in range(params.epochs):
        head.train()
        losses = []
        for batch in couple_batches(examples, params.batch_size, rng):
            check_cancelled()
            hidden_BTD, mask_BT = batcher(batch)
            labels_B = torch.as_tensor(examples.labels[batch], dtype=torch.long, device=hidden_BTD.device)
            loss = cross_entropy(head(hidden_BTD, mask_BT), labels_B)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, _MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        head.eval()
        epochs.append(Epoch(float(np.mean(losses)), *validate()))
        if epochs[-1] is best_epoch(epochs):
            best = copy.deepcopy(model.state_dict())
        if stale_epochs(epochs) >= params.patience:
            break
    model.load_state_dict(best)
    head.eval()
    return epochs


def best_epoch(epochs: Sequence[Epoch]) -> Epoch:
    """Return the epoch with the highest validation AUROC, rounded to three decimals. NLL breaks ties."""
    return max(epochs, key=lambda epoch: (round(epoch.validation_auroc, 3), -epoch.validation_nll))


def stale_epochs(epochs: Sequence[Epoch]) -> int:
    """Return the number of epochs since the best epoch."""
    return len(epochs) - 1 - epochs.index(best_epoch(epochs))


def warmup_then_decay(num_steps: int, warmup_share: float) -> Callable[[int], float]:
    """Return the factor on the learning rate by step: a linear rise over the warm-up, then a linear fall to 0."""
    warmup = max(1, round(warmup_share * num_steps))

    def factor(step: int) -> float:
        return min((step + 1) / warmup, (num_steps - step) / max(1, num_steps - warmup))

    return factor


def couple_batches(examples: Examples, batch_size: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the batches of window indices for one epoch.

    Couples are in random order, and the couples of a batch have similar lengths.
    """
    lengths = [max(len(examples.windows[index]) for index in couple) for couple in examples.couples]
    order = rng.permutation(len(examples.couples)).tolist()
    num_couples = batch_size // 2
    batches: list[list[int]] = []
    for first in range(0, len(order), num_couples * _CHUNK_BATCHES):
        chunk = sorted(order[first : first + num_couples * _CHUNK_BATCHES], key=lambda couple: lengths[couple])
        for start in range(0, len(chunk), num_couples):
            couples = chunk[start : start + num_couples]
            batches.append([index for couple in couples for index in examples.couples[couple]])
    return [batches[position] for position in rng.permutation(len(batches))]


def margins(head: nn.Module, batcher: Batcher, windows: Sequence[Window]) -> np.ndarray:
    """Return the logit of the concept minus the logit of its absence for each window [n]."""
    logits = np.zeros(len(windows))
    with torch.no_grad():
        for batch in length_batches(list(map(len, windows)), _EVAL_TOKENS):
            logits_BL = head(*batcher(batch))
            logits[batch] = (logits_BL[:, 1] - logits_BL[:, 0]).double().cpu().numpy()
    return logits
