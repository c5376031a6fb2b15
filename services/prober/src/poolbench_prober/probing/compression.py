"""Online code length of labels given vectors, in bits: how easily a probe learns, not only how well.

Reference: Voita & Titov (2020), "Information-theoretic probing with minimum description length", section 3.2.
Here the regularisation is chosen inside each block, with the constant predictor among the choices. Otherwise a probe
of high-dimensional vectors that learns from few labels pays for its overconfidence, and random labels would seem less
compressible the wider the vectors are.

Groups (matched pairs, documents) stay whole: in the shuffle, in the blocks and in the inner folds. Otherwise a sentence
is sent before its twin with the opposite label, the probe expects the label of the twin, and the code length says that
nothing was learned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy.special import log_softmax
from scipy.stats import entropy

from poolbench.errors import CellError
from poolbench.statistics.folds import MIN_GROUPS
from poolbench.statuses import Status

#: Ends of the blocks in percent of the instances.
BLOCKS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)


@dataclass(frozen=True)
class CodeLengths:
    """The cost of sending n labels of K classes, or n real values in K bins."""

    num_classes: int  # K
    uniform_bits: float  # n log2 K
    floor: float  # log2 K over the entropy of the class frequencies: the ratio that these alone give
    online_bits: float  # with the regularisation chosen inside each block
    plain_bits: float  # with one fixed regularisation, as an unregularised probe would be used
    released_nats: float | None  # the sum of the code released with Holmes for that probe; None for values
    c_of_blocks: tuple[float | None, ...]  # C of each block; null for the constant predictor, or without convergence
    num_replaced: int = 0  # blocks of the plain code that the constant predictor sent, without a converged probe

    @property
    def compression(self) -> float:
        """Return the uniform code length divided by the online code length.

        If the vectors have no information on the labels, the ratio is about `floor`.
        """
        return self.uniform_bits / self.online_bits

    @property
    def unregularised(self) -> float:
        """Return the compression of the probe without regularisation."""
        return self.uniform_bits / self.plain_bits

    @property
    def released(self) -> float | None:
        """Return bits over nats of a softmax applied twice: 1 / ln 2 at chance, at most 3.192 for two classes."""
        return None if self.released_nats is None else self.uniform_bits / self.released_nats


class Sender(Protocol):
    """The state of a code after some labels were sent, and its prediction of the next labels."""

    def choose(self, c_values: Sequence[float]) -> float | None:
        """Return the C with the shortest expected code, or None for the constant predictor."""

    def converged(self, c: float) -> bool:
        """Return whether there is a converged probe of this regularisation."""

    def log_probabilities(self, block_mD: np.ndarray, c: float | None) -> np.ndarray:
        """Return the log-probabilities of the classes [m, K]. They are constant for c = None or without a probe."""


def block_ends(sizes: np.ndarray) -> list[int]:
    """Return the distinct numbers of instances at which blocks end. The last is the number of all instances.

    A block ends with the group that reaches its percentage.

    Args:
        sizes: Number of instances of each group, in the order of sending [G].
    """
    borders = np.cumsum(sizes)
    percentages = np.array(BLOCKS) * borders[-1] / 100
    reached = np.searchsorted(borders, np.maximum(1, np.round(percentages)))
    return [int(end) for end in np.unique(borders[reached])]


def send(
    vectors_nD: np.ndarray,
    codes: np.ndarray,
    num_classes: int,
    groups: np.ndarray,
    sender_after: Callable[[np.ndarray], Sender],
    *,
    c_values: Sequence[float],
    plain_c: float,
    seed: int,
    released: bool,
) -> CodeLengths:
    """Send the labels block by block in one fixed shuffle of the groups, and sum the cost of each code.

    Args:
        groups: Group of each instance, from 0 [n].
        sender_after: Returns the sender after the labels of these rows, in their order.
        seed: Seed of the shuffle.
        released: Whether to sum the cost by the released formula too.

    Raises:
        CellError: `too_few` below `MIN_GROUPS` groups: most labels would be sent before a probe can be chosen.
    """
    sizes = np.bincount(groups)
    if len(sizes) < MIN_GROUPS:
        reason = (
            f"{len(sizes)} groups of training instances (pairs, documents) for a code length; {MIN_GROUPS} are needed"
        )
        raise CellError(Status.TOO_FEW, reason)
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    order, ends = np.argsort(np.argsort(shuffled)[groups], kind="stable"), block_ends(sizes[shuffled])
    online = plain = double = ends[0] * np.log(num_classes)  # the first block is sent without a probe
    block_c_values: list[float | None] = []
    num_replaced = 0
    for start, end in pairwise(ends):
        rows, sender = order[start:end], sender_after(order[:start])
        block, block_codes = vectors_nD[rows], codes[rows]
        c = sender.choose(c_values)
        block_c_values.append(c if c is not None and sender.converged(c) else None)
        online += nats(sender.log_probabilities(block, c), block_codes)
        log_p = sender.log_probabilities(block, plain_c)
        num_replaced += not sender.converged(plain_c)
        plain += nats(log_p, block_codes)
        double += nats(np.asarray(log_softmax(np.exp(log_p), axis=1)), block_codes)
    bit = np.log(2)
    floor = float(np.log2(num_classes) / entropy(np.bincount(codes), base=2))
    bits = len(codes) * np.log2(num_classes), floor, online / bit, plain / bit
    return CodeLengths(num_classes, *bits, double if released else None, tuple(block_c_values), num_replaced)


def nats(log_probabilities_mK: np.ndarray, codes: np.ndarray) -> float:
    """Return negative log-likelihood of the labels."""
    return float(-log_probabilities_mK[np.arange(len(codes)), codes].sum())


INNER_FOLDS = 5


def laplace(counts_K: np.ndarray, num_groups: int) -> np.ndarray:
    """Return the natural log of the class frequencies by Laplace's rule of succession [K].

    The rule adds one group of average size to each class, because labels of one document are not independent.
    """
    added = counts_K.sum() / num_groups
    return np.asarray(np.log((counts_K + added) / (counts_K.sum() + added * len(counts_K))))


def constant_predictor(codes: np.ndarray, num_classes: int, groups: np.ndarray) -> np.ndarray:
    """Return log-probabilities [K]: class frequencies by Laplace's rule if they save bits, else uniform.

    If K classes are equally frequent, learning frequencies costs about (K - 1) / 2 nats per block and gains nothing.
    So frequencies must save more than one standard error on the labels sent, where the labels of each group are
    predicted from the other groups.

    Args:
        codes: Class numbers of the labels sent [n].
        groups: Group of each label sent [n].
    """
    uniform = np.full(num_classes, -np.log(num_classes))
    _, groups, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return uniform
    counts_K, num_sent, added = np.bincount(codes, minlength=num_classes), len(codes), len(codes) / len(sizes)
    cells, cell_counts = np.unique(groups * num_classes + codes, return_counts=True)  # labels of a class in a group
    group_of, class_of = np.divmod(cells, num_classes)
    others = (counts_K[class_of] - cell_counts + added) / (num_sent - sizes[group_of] + added * num_classes)
    saved_G = np.bincount(group_of, cell_counts * np.log(others * num_classes))
    return laplace(counts_K, len(sizes)) if saves(saved_G, sizes) else uniform


def saves(saved_G: np.ndarray, sizes: np.ndarray) -> bool:
    """Return whether the nats saved exceed one standard error, which treats groups as independent.

    Args:
        saved_G: Nats saved on all labels of each group [G].
        sizes: Number of labels of each group [G].
    """
    total = saved_G.sum()
    return bool(total > np.sqrt(np.square(saved_G - sizes * total / sizes.sum()).sum()))


def held_out_cost(codes: np.ndarray, folds: np.ndarray, num_classes: int, groups: np.ndarray) -> np.ndarray:
    """Return the cost of each label by class frequencies of the other folds, or uniform if cheaper in total [n].

    Stratified folds have equal frequencies, which favours every predictor that learns frequencies. A probe learns
    frequencies too, so the baseline must not be the uniform predictor alone.
    """
    cost_n = np.empty(len(codes))
    for fold in np.unique(folds):
        held = folds == fold
        counts_K, num_groups = np.bincount(codes[~held], minlength=num_classes), len(np.unique(groups[~held]))
        cost_n[held] = -laplace(counts_K, num_groups)[codes[held]]
    uniform = np.log(num_classes)
    return cost_n if cost_n.mean() < uniform else np.full(len(codes), uniform)


def cheapest(cost_nC: np.ndarray, c_values: Sequence[float], groups: np.ndarray) -> float | None:
    """Return the cheapest C if it saves over one standard error compared with the constant predictor (column 0).

    Without the margin, the best of many useless probes wins by chance, and random labels cost up to 2 % too much.

    Reference: Breiman et al. (1984), Classification and regression trees, 3.4.3 (the one-standard-error rule).
    """
    best = int(np.argmin(cost_nC.sum(axis=0)))
    _, groups, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    saved_G = np.bincount(groups, cost_nC[:, 0] - cost_nC[:, best])
    return c_values[best - 1] if best and saves(saved_G, sizes) else None


def dealt_folds(codes: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray | None:
    """Return inner folds of whole groups, with evenly distributed classes [n].

    Groups with equal labels go to the folds in turn. The result is None unless two classes are in two groups each.
    """
    names, groups = np.unique(groups, return_inverse=True)
    counts_GK = np.zeros((len(names), int(codes.max()) + 1), dtype=np.int32)
    np.add.at(counts_GK, (groups, codes), 1)
    if ((counts_GK > 0).sum(axis=0) >= 2).sum() < 2:
        return None
    order = np.random.default_rng((seed, len(codes))).permutation(len(names))
    order = order[np.lexsort(-counts_GK[order].T[::-1])]
    fold_of_group = np.empty(len(names), dtype=int)
    fold_of_group[order] = np.arange(len(names)) % min(INNER_FOLDS, len(names))
    return fold_of_group[groups]
