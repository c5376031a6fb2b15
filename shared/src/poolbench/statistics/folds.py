"""Groups of passages that depend on one another, and cross-validation folds and splits that keep them whole."""

from collections.abc import Iterable, Sequence

import numpy as np

from poolbench.statistics.inputs import StatisticError
from poolbench.statuses import Status

#: Groups (pairs or documents) that D1 needs of each class, one for each of its five folds. With fewer, probes of any
#: vectors separate the classes, and an interval over groups says nothing.
MIN_GROUPS = 5
SPLITS = ("train", "dev", "test")
#: Shares of train, dev and test where a data set comes without a split.
SHARES = (0.7, 0.1, 0.2)


def connected_groups(*keys: Sequence[str | None]) -> np.ndarray:
    """Return the group number of each passage, int [n]. A group is a connected component of passages with shared keys.

    Each sequence holds n keys of one kind, e.g. pair ids. A null key links nothing. Groups are numbered in the order of
    their first passages.
    """
    links = (
        (row, (kind, key)) for kind, column in enumerate(keys) for row, key in enumerate(column) if key is not None
    )
    return components(links, len(keys[0]))


def components(links: Iterable[tuple[int, object]], num_rows: int) -> np.ndarray:
    """Return the component of each row [n] of the graph that links rows to their features."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows: list[int] = []
    nodes: list[int] = []
    node_of: dict[object, int] = {}
    for row, key in links:
        rows.append(row)
        nodes.append(num_rows + node_of.setdefault(key, len(node_of)))
    size = num_rows + len(node_of)
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, nodes)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1][:num_rows]
    return np.unique(labels, return_inverse=True)[1]


def grouped_folds(
    groups: np.ndarray, labels: np.ndarray, num_folds: int, seed: int, *, min_groups: int = 0
) -> np.ndarray:
    """Return the fold of each passage, int [n]. Groups stay whole, and the classes are spread as evenly as possible.

    Groups are placed from the largest to the smallest, with groups of equal size in random order. Each group goes into
    the fold where it raises the sum of squared class shares least.

    Raises:
        StatisticError: `one_class` if all labels are equal, or `too_few` if a class has fewer groups than folds or than
            `min_groups`, or is absent from a fold.
    """
    present = np.unique(labels)
    if len(present) < 2:
        raise StatisticError(Status.ONE_CLASS, f"all {len(labels)} passages have the label {present.tolist()}")
    counts_GC = np.zeros((int(groups.max()) + 1, 2))
    np.add.at(counts_GC, (groups, labels.astype(int)), 1)
    fewest = int((counts_GC > 0).sum(axis=0).min())
    if fewest < (needed := max(num_folds, min_groups)):
        reason = f"a class has {fewest} groups (pairs and documents) for {num_folds} folds; {needed} are needed"
        raise StatisticError(Status.TOO_FEW, reason)
    shares_GC = counts_GC / counts_GC.sum(axis=0)
    order = np.random.default_rng(seed).permutation(len(shares_GC))
    order = order[np.argsort(-shares_GC[order].sum(axis=1), kind="stable")]
    fold_of_group = np.empty(len(shares_GC), dtype=int)
    totals_FC = np.zeros((num_folds, 2))
    for group in order:
        cost = totals_FC @ shares_GC[group]
        fold = int(np.lexsort((totals_FC.sum(axis=1), cost))[0])
        fold_of_group[group] = fold
        totals_FC[fold] += shares_GC[group]
    if (totals_FC == 0).any():
        raise StatisticError(Status.TOO_FEW, f"groups are too unequal: a class is absent from one of {num_folds} folds")
    return fold_of_group[groups]


def drawn_splits(groups: np.ndarray, seed: int) -> np.ndarray:
    """Return `train`, `dev` or `test` for each row [n]: groups in random order, cut where the shares are reached."""
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    middle = np.cumsum(sizes[order]) - sizes[order] / 2  # a group belongs to the split that contains its middle
    part = np.searchsorted(np.cumsum(SHARES[:2]) * len(groups), middle, side="right")
    part_of_group = np.empty(len(sizes), dtype=int)
    part_of_group[order] = part
    return np.array(SPLITS)[part_of_group[codes]]
