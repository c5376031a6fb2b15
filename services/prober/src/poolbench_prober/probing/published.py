"""How references train their probes: Holmes by its code and by its paper, and Zhu et al. (2022) by a search."""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.probing.models import Fitted, Problem
from poolbench_prober.probing.training import (
    Loss,
    Schedule,
    Trained,
    cross_entropy,
    cross_entropy_of_softmax,
    smooth_l1,
    train,
)


class Recipe(NamedTuple):
    """A published way to train a probe on vectors that are not standardised."""

    schedule: Schedule
    classes: Loss  # loss of a classification; of real values it is smooth L1


#: The released code: a softmax before a loss that contains one, and an early stop.
RELEASED = Recipe(Schedule(1e-3, weight_decay=0.0, batch=16, patience=5), cross_entropy_of_softmax)
#: The paper: AdamW with PyTorch's usual weight decay, and all epochs.
PAPER = Recipe(Schedule(5e-4, weight_decay=0.01, batch=64), cross_entropy)
RECIPES = {"released": RELEASED, "paper": PAPER}


def fit(problem: Problem) -> Fitted:
    """Train the probe by the recipe of the parameters' protocol. The number of threads changes no bit.

    Raises:
        CellError: `too_few` without dev instances (which choose the epoch), `non_finite` as in `train`.

    Reference: Waldis et al. (2024), "Holmes", section 4, and the code released with it.
    """
    if not len(problem.rows["dev"]):
        raise CellError(Status.TOO_FEW, "the published protocols choose an epoch on dev, and there is no dev instance")
    recipe = RECIPES[problem.params.protocol]
    # A BLAS adds up in another order on more threads. Overflows end in a loss that is not finite.
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        trained = train_probe(problem, recipe)
        outputs_nK = trained.outputs(problem.vectors_nD.astype(np.float32))
    details = {"epoch": trained.epoch, "num_epochs": len(trained.dev_losses), "dev_loss": min(trained.dev_losses)}
    return Fitted(outputs_nK[:, 0] if problem.is_regression else outputs_nK.argmax(axis=1), details)


def train_probe(problem: Problem, recipe: Recipe) -> Trained:
    """Return the trained probe of a problem."""
    answers = problem.values.astype(np.float32 if problem.is_regression else np.int64)
    parts = [problem.rows[split] for split in ("train", "dev")]
    train_set, dev_set = ((problem.vectors_nD[rows].astype(np.float32), answers[rows]) for rows in parts)
    loss = smooth_l1 if problem.is_regression else recipe.classes
    rng = np.random.default_rng((problem.seed, 2))
    return train(train_set, dev_set, [max(1, problem.num_classes)], loss, recipe.schedule, rng)


#: Learning rates and batches that Zhu et al. (2022) search.
RATES, BATCHES = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2), (8, 16, 32, 64)
#: Their Adam, with the first of both.
SEARCHED = Schedule(
    RATES[0], weight_decay=0.0, batch=BATCHES[0], dropout=0.0, warm_up=0.0, decays=False, num_epochs=50, patience=5
)
#: Most passes over the training rows for one probe.
SEARCHED_EPOCHS = len(RATES) * len(BATCHES) * SEARCHED.num_epochs


def fit_searched(problem: Problem, hidden: int | None) -> Fitted:
    """Train a probe with each learning rate and batch, and return the one that is most accurate on dev.

    Vectors are not standardised. Of probes that are equally accurate, the lowest loss on dev wins. The number of
    threads changes no bit.

    Args:
        hidden: Units of the hidden layer; None for a linear probe.

    Raises:
        CellError: As `fit` does.

    Reference: Zhu et al. (2022), "On the data requirements of probing", and the code released with it. Their trials
    train 50 epochs at least, and predict with the last epoch; here the epoch has the lowest loss on dev.
    """
    dev = problem.rows["dev"]
    widths, vectors_nD = [*filter(None, [hidden]), problem.num_classes], problem.vectors_nD.astype(np.float32)
    train_set, dev_set = ((vectors_nD[rows], problem.values[rows]) for rows in (problem.rows["train"], dev))
    trials = list[tuple[float, float, np.ndarray, dict[str, float]]]()
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        for rate, batch in product(RATES, BATCHES):
            schedule = replace(SEARCHED, learning_rate=rate, batch=batch)
            rng = np.random.default_rng((problem.seed, 7))
            trained = train(train_set, dev_set, widths, cross_entropy, schedule, rng)
            predicted_n = trained.outputs(vectors_nD).argmax(axis=1)
            accuracy = float((predicted_n[dev] == problem.values[dev]).mean())
            trials.append((-accuracy, min(trained.dev_losses), predicted_n, {"rate": rate, "batch": batch}))
    _, _, predicted_n, details = min(trials, key=lambda trial: trial[:2])
    return Fitted(predicted_n, details)
