"""The construction methods C1-C5, LDA and mean-centred C1."""

import numpy as np

from poolbench.directions.registry import CONSTRUCTIONS, DirectionContext
from poolbench.errors import CellError
from poolbench.statuses import Status


@CONSTRUCTIONS.register(
    "C1",
    version=1,
    summary="difference of the class means",
    reference="Marks & Tegmark (2023), The geometry of truth (mass-mean direction)",
)
def mean_difference(context: DirectionContext) -> np.ndarray:
    """Return the mean of the positives minus the mean of the negatives."""
    return context.positives.mean(axis=0) - context.negatives.mean(axis=0)


@CONSTRUCTIONS.register(
    "C2",
    version=1,
    summary="first principal component, positives on the high side",
    reference="Zou et al. (2023), Representation engineering, 3.1 (PCA without labels)",
)
def principal_component(context: DirectionContext) -> np.ndarray:
    """Return the first principal component of all vectors, scaled by the spread. Its sign comes from the labels."""
    component = top_component(context.vectors_nD - context.vectors_nD.mean(axis=0))
    return component * _sign_of(component @ mean_difference(context))


@CONSTRUCTIONS.register(
    "C3",
    version=1,
    summary="weights of the converged L2-logistic probe, in the coordinates of the vectors",
    reference="Alain & Bengio (2016), Understanding intermediate layers using linear classifier probes",
    needs=("probe_weights",),
)
def probe_weights(context: DirectionContext) -> np.ndarray:
    """Return the probe's weights. Raise CellError `not_converged` without a converged probe."""
    if context.probe_weights is None:
        raise CellError(Status.NOT_CONVERGED, "direction C3 needs the weights of a converged probe")
    return context.probe_weights


@CONSTRUCTIONS.register(
    "C4",
    version=1,
    summary="first principal component of the pair differences, not centred",
    reference="Zou et al. (2023), Representation engineering, 3.1; centring would remove the mean difference",
    draws=True,
)
def pair_difference_component(context: DirectionContext) -> np.ndarray:
    """Return the first right singular vector of the differences positive minus negative.

    The differences are taken within matched pairs, or within random pairs if there are no matched pairs.
    """
    pairs = context.pairs_P2 if len(context.pairs_P2) else random_pairs(context.labels, context.seed)
    differences = context.vectors_nD[pairs[:, 0]] - context.vectors_nD[pairs[:, 1]]
    component = top_component(differences)
    return component * _sign_of(component @ differences.mean(axis=0))


@CONSTRUCTIONS.register(
    "LDA",
    version=1,
    summary="shrunk within-class covariance inverse times the difference of means",
    reference="Ledoit & Wolf (2004), A well-conditioned estimator for large-dimensional covariance matrices",
)
def discriminant(context: DirectionContext) -> np.ndarray:
    """Return Fisher's discriminant with Ledoit-Wolf shrinkage, solved in the row space of the vectors."""
    class_means = np.stack([context.negatives.mean(axis=0), context.positives.mean(axis=0)])
    centred_nD = context.vectors_nD - class_means[context.labels.astype(int)]
    return shrunk_solve(centred_nD, class_means[1] - class_means[0])


@CONSTRUCTIONS.register(
    "C1_centred",
    version=1,
    summary="mean of the positives minus a background mean",
    reference="Jorgensen et al. (2023), Improving activation steering with mean-centring",
)
def mean_centred(context: DirectionContext) -> np.ndarray:
    """Return the mean of the positives minus the mean of all vectors.

    The mean of all vectors is the background of both classes. The result is parallel to C1, with another norm.
    """
    return context.positives.mean(axis=0) - context.vectors_nD.mean(axis=0)


@CONSTRUCTIONS.register(
    "C5",
    version=1,
    summary="decoder rows of the autoencoder features with the largest mean activation difference, weighed by it",
    reference="Templeton et al. (2024), Scaling monosemanticity",
    needs=("sae",),
)
def autoencoder_features(context: DirectionContext) -> np.ndarray:
    """Return the sum over the top features of (mean on the positives - mean on the negatives) times the decoder row.

    The sum is the part of the reconstructed difference of means that these features carry. Vectors are not rescaled.

    Raises:
        CellError: `not_implemented` without an autoencoder, or `failed` if the autoencoder reads vectors of another
            width.
    """
    if context.sae is None:
        raise CellError(Status.NOT_IMPLEMENTED, "direction C5 needs a sparse autoencoder; name one in the run's saes")
    features_nF = context.sae.encode(context.vectors_nD) if context.features_nF is None else context.features_nF
    means = [features_nF[context.labels == label].mean(axis=0, dtype=np.float64) for label in (1, 0)]
    difference = means[0] - means[1]
    top = np.argsort(-np.abs(difference), kind="stable")[: context.num_features]
    return context.sae.direction_of(top, difference[top])


def top_component(rows_nD: np.ndarray) -> np.ndarray:
    """Return the first right singular vector times its singular value [D]. If all rows are zero, return zeros.

    The eigenvector is computed on the smaller side (rows or columns). The iteration starts from a fixed vector.
    """
    if min(rows_nD.shape) == 1:
        largest = int(np.argmax(np.linalg.norm(rows_nD, axis=1)))
        return rows_nD[largest] if rows_nD.shape[0] == 1 else np.array([np.linalg.norm(rows_nD)])
    if not rows_nD.any():
        return np.zeros(rows_nD.shape[1])
    if rows_nD.shape[0] > rows_nD.shape[1]:
        vector = _top_eigenvector(rows_nD.T @ rows_nD)
        return vector * np.linalg.norm(rows_nD @ vector)
    return _top_eigenvector(rows_nD @ rows_nD.T) @ rows_nD


def random_pairs(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return random cross-class pairs without reuse, rows (positive, negative) [P, 2]."""
    rng = np.random.default_rng(seed)
    positives = rng.permutation(np.flatnonzero(labels == 1))
    negatives = rng.permutation(np.flatnonzero(labels == 0))
    num_pairs = min(len(positives), len(negatives))
    return np.stack([positives[:num_pairs], negatives[:num_pairs]], axis=1)


def solved_by_rows(num_rows: int, width: int) -> bool:
    """Return whether `shrunk_solve` works on matrices of rows x rows, as opposed to width x width.

    Up to 5,000 rows, it always works on rows x rows: this needs little memory, and keeps the values of earlier runs
    unchanged to the last bit.
    """
    return num_rows <= max(width, 5_000)


def shrunk_solve(centred_nD: np.ndarray, target_D: np.ndarray) -> np.ndarray:
    """Solve (Ledoit-Wolf covariance of the centred rows) x = target.

    The n x n Gram matrix G = X X' is used or, if there are many rows, the D x D matrix X'X. Both have the same trace
    and norm.

    Reference: Ledoit & Wolf (2004), eqs. 9-14, with tr S = tr G / n, ||S||^2 = ||G||^2 / n^2. The system (a I + b X'X)
    is then solved directly, or through G by Woodbury's identity.
    """
    from scipy import linalg  # half a second, which commands that only check names need not wait for

    num_rows, width = centred_nD.shape
    by_rows = solved_by_rows(num_rows, width)
    gram = centred_nD @ centred_nD.T if by_rows else centred_nD.T @ centred_nD
    mean_variance = np.trace(gram) / (num_rows * width)
    if mean_variance == 0:
        raise CellError(Status.COLLAPSED, "the vectors do not vary inside the classes")
    squared_norm = (gram**2).sum() / num_rows**2
    distance = squared_norm / width - mean_variance**2
    lengths_n = np.diag(gram) if by_rows else (centred_nD**2).sum(axis=1)
    noise = ((lengths_n**2).sum() / num_rows - squared_norm) / (num_rows * width)
    shrinkage = 1.0 if distance <= 0 else min(max(noise, 0.0), distance) / distance
    ridge = shrinkage * mean_variance
    scale = (1 - shrinkage) / num_rows
    if scale == 0:
        return target_D / ridge
    ridge = max(ridge, 1e-12 * mean_variance)
    system = gram + np.eye(len(gram)) * (ridge / scale)
    if not by_rows:
        return linalg.solve(system, target_D, assume_a="pos") / scale
    inner = linalg.solve(system, centred_nD @ target_D, assume_a="pos")
    return (target_D - centred_nD.T @ inner) / ridge


def _top_eigenvector(symmetric: np.ndarray) -> np.ndarray:
    from scipy.sparse.linalg import eigsh

    size = len(symmetric)
    start = np.sqrt(np.maximum(np.diag(symmetric), 0)) + 1e-12 * np.arange(1, size + 1)
    if size < 8:
        return np.linalg.eigh(symmetric)[1][:, -1]
    return eigsh(symmetric, k=1, which="LA", v0=start)[1][:, 0]


def _sign_of(value: float | np.ndarray) -> float:
    return -1.0 if value < 0 else 1.0
