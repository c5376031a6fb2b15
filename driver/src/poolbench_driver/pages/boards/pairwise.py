"""Compare every pair of a board's strategies."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.statistics.multiple import benjamini_hochberg, holm
from poolbench.statistics.ranks import complete_ranks, nemenyi_test
from poolbench.statistics.wilcoxon import wilcoxon_test
from poolbench.statuses import Status


def pairwise_rows(
    names: Sequence[str], values_NK: np.ndarray, ranks_NK: np.ndarray, *, higher_is_better: bool = True
) -> list[dict[str, Any]]:
    """Return one row per pair, over the blocks that have both strategies.

    Args:
        names: K strategies.
        values_NK: Their values in each block; infinite for a worst-rank null.
        ranks_NK: Their ranks in each block.
        higher_is_better: Direction of goodness.

    Returns:
        Rows with strategy, other, n (blocks), rank_difference and value_difference (means of first minus second),
        effect (matched-pairs rank-biserial, positive if the first is better), p (Wilcoxon), p_holm, p_bh and p_nemenyi
        (needs two complete blocks). A pair that shares no block has nulls with a status and reason.
    """
    pairs = list(combinations(range(len(names)), 2))
    rows = [_pair(names, values_NK, ranks_NK, i, j, 1 if higher_is_better else -1) for i, j in pairs]
    p_values = np.array([np.nan if row["p"] is None else row["p"] for row in rows])
    corrected = zip(holm(p_values), benjamini_hochberg(p_values), strict=True)
    nemenyi = _nemenyi(ranks_NK)
    return [
        {**row, "p_holm": _known(by_holm), "p_bh": _known(by_bh), "p_nemenyi": _known(nemenyi[i, j])}
        for row, (by_holm, by_bh), (i, j) in zip(rows, corrected, pairs, strict=True)
    ]


def _pair(
    names: Sequence[str], values_NK: np.ndarray, ranks_NK: np.ndarray, i: int, j: int, better: int
) -> dict[str, Any]:
    both = np.isfinite(ranks_NK[:, i]) & np.isfinite(ranks_NK[:, j])
    row: dict[str, Any] = {
        "strategy": names[i],
        "other": names[j],
        "n": int(both.sum()),
        "status": Status.OK,
        "reason": "",
    }
    if not both.any():
        nothing = dict.fromkeys(("rank_difference", "value_difference", "p", "effect"))
        return {**row, **nothing, "status": Status.TOO_FEW, "reason": "no concept has both"}
    differences = _differences(values_NK[both, i], values_NK[both, j])
    result = wilcoxon_test(better * differences)
    measured = np.isfinite(values_NK[both, i]) & np.isfinite(values_NK[both, j])
    return {
        **row,
        "rank_difference": float((ranks_NK[both, i] - ranks_NK[both, j]).mean()),
        "value_difference": float(differences[measured].mean()) if measured.any() else None,
        "p": result.p_value,
        "effect": result.effect,
    }


def _differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return first minus second; two worst-rank nulls (both infinite) are equal."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(first - second, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _nemenyi(ranks_NK: np.ndarray) -> np.ndarray:
    """Return Nemenyi's p of all pairs over the complete blocks [K, K]; NaN below two blocks or two strategies."""
    complete, ranked_K = complete_ranks(ranks_NK)
    p_values = np.full((len(ranked_K),) * 2, np.nan)
    if min(complete.shape) >= 2:
        p_values[np.ix_(ranked_K, ranked_K)] = nemenyi_test(-complete)
    return p_values


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
