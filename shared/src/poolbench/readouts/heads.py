"""The readout of S3: the mean over the heads whose pooled vectors separate the classes best."""

from functools import partial

import numpy as np

from poolbench.errors import CellError
from poolbench.readouts import READOUTS, FittedReadout, Training
from poolbench.statistics.auroc import auroc
from poolbench.statuses import Status

#: Share of the heads that are kept, rounded up.
SHARE = 0.25


@READOUTS.register(
    "best_heads",
    version=1,
    summary="mean over the best ceil(H/4) parts, ranked by the AUROC of a probe on each, out of inner folds",
    reference="Li et al. (2023), Inference-time intervention, 3.1 (heads ranked by the accuracy of a probe on "
    "rows that it did not see); a share of the heads, since a fixed number can be all of a model's heads",
)
def best_heads(training: Training) -> list[FittedReadout | CellError]:
    """Rank the parts under every labeling, and average the best parts of each labeling.

    Scores come from probes that did not see the row. A probe's fit to its own training rows would rank parts by how
    well they can be memorised. If two parts have equal AUROCs, the part with the lower index wins.
    """
    auroc_PK = np.array([part_auroc(training, part) for part in range(training.num_parts)])
    return [_mean_of_best(column) for column in auroc_PK.T]


def part_auroc(training: Training, part: int) -> list[float]:
    """Return the AUROC of a part under each labeling, within inner folds, or NaN if a probe failed."""
    scores_nK = training.held_out_scores(training.parts_nPD[:, part])
    return [
        np.nan if np.isnan(scores).any() else auroc(labels, scores, training.folds)
        for labels, scores in zip(training.labels_nK.T, scores_nK.T, strict=True)
    ]


def mean_of_parts(chosen: np.ndarray, parts_mPD: np.ndarray) -> np.ndarray:
    """Return the mean of the chosen parts of each passage, float64 [m, D]."""
    return parts_mPD[:, chosen].mean(axis=1, dtype=np.float64)


def _mean_of_best(auroc_P: np.ndarray) -> FittedReadout | CellError:
    failed = np.flatnonzero(~np.isfinite(auroc_P))
    if len(failed):
        return CellError(
            Status.NOT_CONVERGED, f"part {failed[0]} has no AUROC inside the training rows to be ranked by"
        )
    ranked = np.argsort(-auroc_P, kind="stable")
    best_parts = np.sort(ranked[: int(np.ceil(SHARE * len(auroc_P)))])
    details = {"heads": best_parts.tolist(), "auroc": [round(float(value), 6) for value in auroc_P]}
    return FittedReadout(partial(mean_of_parts, best_parts), details)
