"""Pairs of a positive and a negative passage."""

from collections.abc import Sequence

import numpy as np


def matched_pairs(pair_ids: Sequence[str | None], labels: np.ndarray) -> np.ndarray:
    """Return the row numbers (positive, negative) of each pair that has exactly one passage of each class, [P, 2]."""
    members: dict[str, list[int]] = {}
    for row, pair in enumerate(pair_ids):
        if pair is not None:
            members.setdefault(pair, []).append(row)
    ordered = [sorted(rows, key=lambda row: -labels[row]) for rows in members.values() if len(rows) == 2]
    complete = [rows for rows in ordered if labels[rows[0]] != labels[rows[1]]]
    return np.array(complete, dtype=int).reshape(-1, 2)


def pairs_by_id(passage_ids: Sequence[str], pair_ids: Sequence[str | None], labels: np.ndarray) -> np.ndarray:
    """Return the matched pairs as rows of `passage_ids`, in the order of the ids of their positives, [P, 2].

    Without matched pairs, the first positive by id is paired with the first negative by id, the second with the second,
    and so on.
    """
    pairs_P2 = matched_pairs(pair_ids, labels)
    order = sorted(range(len(passage_ids)), key=lambda row: passage_ids[row])
    if not len(pairs_P2):
        both = zip(*([row for row in order if labels[row] == label] for label in (1, 0)), strict=False)
        return np.array(list(both), dtype=int).reshape(-1, 2)
    place = np.argsort(order)
    return pairs_P2[np.argsort(place[pairs_P2[:, 0]])]
