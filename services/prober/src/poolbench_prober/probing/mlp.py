"""A probe with one hidden layer of ReLU units."""

from dataclasses import replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_prober.probing.models import Fitted, Problem
from poolbench_prober.probing.training import Schedule, Trained, cross_entropy, squared, train

#: The batch is for 2,048 training rows or more.
SCHEDULE = Schedule(
    1e-3, weight_decay=0.0, batch=64, dropout=0.0, warm_up=0.0, decays=False, num_epochs=200, patience=10
)
#: Weight decays to choose from on dev.
WEIGHT_DECAYS = (0.0, 3.0)
#: Most passes over the training rows for one probe.
MOST_EPOCHS = len(WEIGHT_DECAYS) * SCHEDULE.num_epochs


def fit_mlp(problem: Problem, hidden: int) -> Fitted:
    """Return the predictions of the probe of `fit_outputs` for every instance."""
    outputs_nK, classes, details = fit_outputs(problem, hidden)
    if problem.is_regression:
        train_values = problem.values[problem.rows["train"]]
        return Fitted(outputs_nK[:, 0] * train_values.std() + train_values.mean(), details)
    return Fitted(classes[outputs_nK.argmax(axis=1)], details)


def fit_outputs(problem: Problem, hidden: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Fit the probe of the weight decay and epoch with the lowest loss on dev.

    The number of threads changes no bit of the result.

    The loss is cross-entropy, or half the squared error of values. Vectors and values are standardised on train.

    Args:
        hidden: Number of units of the hidden layer.

    Returns:
        Logits [n, K] (or standardised values [n, 1]) of all instances, the K classes of train, and details of the fit.

    Raises:
        CellError: `one_class` if train has one, `too_few` without a dev instance of a class that train has,
            `non_finite` as `train`.
    """
    rows = problem.rows["train"]
    classes = np.zeros(0, dtype=int) if problem.is_regression else np.unique(problem.values[rows])
    if len(classes) == 1:
        raise CellError(Status.ONE_CLASS, "all training instances have one label")
    # A BLAS adds up in another order on more threads. Overflows end in a loss that is not finite.
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        vectors_nD = _standardised(problem.vectors_nD, rows)
        scaled = problem._replace(vectors_nD=vectors_nD)
        probes = {decay: train_mlp(scaled, hidden, classes, decay) for decay in WEIGHT_DECAYS}
        best_decay = min(probes, key=lambda decay: min(probes[decay].dev_losses))
        trained = probes[best_decay]
        outputs_nK = trained.outputs(vectors_nD)
    details = {
        "weight_decay": best_decay,
        "epoch": trained.epoch,
        "num_epochs": len(trained.dev_losses),
        "dev_loss": min(trained.dev_losses),
    }
    return outputs_nK, classes, details


def train_mlp(problem: Problem, hidden: int, classes: np.ndarray, weight_decay: float) -> Trained:
    """Train an MLP probe on standardised vectors.

    Args:
        classes: Classes that train has. Any other class is never predicted, and its dev instances are left out.
    """
    rows = dict(problem.rows)
    if problem.is_regression:
        targets = _standardised(problem.values, rows["train"])
    else:
        targets = np.searchsorted(classes, problem.values)
        rows["dev"] = rows["dev"][np.isin(problem.values[rows["dev"]], classes)]
    if not len(rows["dev"]):
        raise CellError(Status.TOO_FEW, "a hidden layer needs dev instances, on which the epoch is chosen")
    train_set, dev_set = ((problem.vectors_nD[rows[split]], targets[rows[split]]) for split in ("train", "dev"))
    widths, loss = ([hidden, 1], squared) if problem.is_regression else ([hidden, len(classes)], cross_entropy)
    schedule = replace(SCHEDULE, weight_decay=weight_decay, batch=batch_size(len(rows["train"])))
    return train(train_set, dev_set, widths, loss, schedule, np.random.default_rng((problem.seed, 6)))


def batch_size(num_rows: int) -> int:
    """Return the rows of a step: a thirty-second of the training rows, from 16 to 64.

    An epoch of fewer steps would change a probe of few rows too little for patience to be counted in epochs.
    """
    return min(SCHEDULE.batch, max(16, num_rows // 32))


def _standardised(columns_nD: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return columns less their mean, over their standard deviation (ddof 0), of some rows; constant ones are 0."""
    means_D = columns_nD[rows].mean(axis=0, dtype=np.float64)
    scales_D = columns_nD[rows].std(axis=0, dtype=np.float64)
    varies_D = scales_D > 1e-12 * abs(means_D)  # the spread of the others is rounding noise
    return np.asarray((columns_nD - means_D) * (varies_D / np.where(varies_D, scales_D, 1.0)), dtype=np.float32)
