"""The table's tests of differences between strategies on D1, again from its cells with our statistics."""

import math
from itertools import combinations

import numpy as np
from recipes.published.stated import Check, Disagreement, Meaning, Significance

from poolbench_driver.contract.published import PublishedTable
from poolbench_driver.pages.boards.ranking import LEVEL
from poolbench_driver.statistics.ranks import friedman_test, nemenyi_quantile, nemenyi_test, tie_groups

#: The cells have five decimals, and the source tested unrounded ones: ties at .99998 move a p-value by about this much.
LARGEST_RATIO = 4.0
#: Largest ratio of two p-values that are the same but for rounding.
SAME_P = 1.01
#: Smaller p-values are as large as the error of the integral behind them.
SMALLEST_P = 1e-9


def significance_checks(table: PublishedTable, tests: Significance) -> list[Check]:
    """Return the checks of the mean ranks, the tests and the tiers."""
    names = [strategy.id for strategy in table.strategies]
    values = block_values(table, tests.concepts)
    return [
        _mean_ranks(tests, names, values),
        _same_cells_same_rank(tests, names, values),
        _friedman(tests, values),
        _pairs(tests, names, values),
        _pairs_of_their_ranks(tests, names),
        _critical_difference(tests, len(names)),
        _tiers(tests, names),
    ]


def block_values(table: PublishedTable, concepts: tuple[str, ...]) -> np.ndarray:
    """Return D1 as [blocks, strategies]: one block per model and concept."""
    return np.array(
        [
            [table.values[model.name, strategy.id, concept, "D1_auroc"] for strategy in table.strategies]
            for model in table.models
            for concept in concepts
        ]
    )


def rank_bounds(values_NK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest mean rank of each strategy, over all ways to order equal cells, [K] each."""
    from scipy import stats

    best = stats.rankdata(-values_NK, axis=1, method="min").mean(axis=0)
    worst = stats.rankdata(-values_NK, axis=1, method="max").mean(axis=0)
    return best, worst


def _mean_ranks(tests: Significance, names: list[str], values_NK: np.ndarray) -> Check:
    """Compare the mean ranks: the source breaks ties, which rounded cells show as ranges."""
    best, worst = rank_bounds(values_NK)
    disagreements = [
        Disagreement(f"mean rank of {name}", tests.mean_ranks[name], (float(best[k]), float(worst[k])))
        for k, name in enumerate(names)
        if not best[k] - 1e-6 <= tests.mean_ranks[name] <= worst[k] + 1e-6
    ]
    return Check("mean ranks lie in the range that ties allow", len(names), tuple(disagreements), meaning=Meaning.COPY)


def _same_cells_same_rank(tests: Significance, names: list[str], values_NK: np.ndarray) -> Check:
    from scipy import stats

    disagreements, compared = [], 0
    shared = [float(rank) for rank in stats.rankdata(-values_NK, axis=1).mean(axis=0)]
    for i, k in combinations(range(len(names)), 2):
        if (values_NK[:, i] == values_NK[:, k]).all():
            compared += 1
            theirs = tests.mean_ranks[names[i]], tests.mean_ranks[names[k]]
            if theirs[0] != theirs[1]:
                why = "their cells are equal; the order of equal cells decides"
                disagreements.append(
                    Disagreement(f"mean ranks of {names[i]} and {names[k]}", theirs, (shared[i], shared[k]), why)
                )
    return Check("strategies with equal cells have equal mean ranks", compared, tuple(disagreements))


def _friedman(tests: Significance, values_NK: np.ndarray) -> Check:
    ours = friedman_test(values_NK).p_value
    apart = abs(math.log(ours / tests.friedman_p)) > math.log(LARGEST_RATIO)
    disagreements = (Disagreement("p of Friedman's test", tests.friedman_p, ours),) if apart else ()
    return Check("Friedman's test, within the rounding of the cells", 1, disagreements, meaning=Meaning.COPY)


def _pairs(tests: Significance, names: list[str], values_NK: np.ndarray) -> Check:
    """Compare which pairs differ at the level of 5 %."""
    p_KK, disagreements = nemenyi_test(values_NK), []
    for i, k in combinations(range(len(names)), 2):
        theirs = tests.pairs.get((names[i], names[k]))
        if (theirs is not None) != bool(p_KK[i, k] < LEVEL):
            why = "close to 5 %, and the cells are rounded"
            where = f"p of {names[i]} and {names[k]}"
            disagreements.append(
                Disagreement(where, f"above {LEVEL}" if theirs is None else theirs, float(p_KK[i, k]), why)
            )
    return Check("pairs that differ at 5 %", len(names) * (len(names) - 1) // 2, tuple(disagreements), Meaning.ROUNDING)


def _pairs_of_their_ranks(tests: Significance, names: list[str]) -> Check:
    """Compare the p-values with those that the source's own mean ranks give."""
    from scipy import stats

    num_treatments, disagreements = len(names), []
    error = math.sqrt(num_treatments * (num_treatments + 1) / (6 * tests.num_blocks))
    for (first, second), theirs in tests.pairs.items():
        apart = abs(tests.mean_ranks[first] - tests.mean_ranks[second])
        ours = float(stats.studentized_range.sf(apart / error * math.sqrt(2), num_treatments, math.inf))
        if max(theirs, ours) > SMALLEST_P and not theirs / SAME_P <= ours <= theirs * SAME_P:
            why = "p shares the ranks of ties, the mean ranks do not"
            disagreements.append(Disagreement(f"p of {first} and {second}", theirs, ours, why))
    return Check("p-values are those of the mean ranks beside them", len(tests.pairs), tuple(disagreements))


def _critical_difference(tests: Significance, num_treatments: int) -> Check:
    error = math.sqrt(num_treatments * (num_treatments + 1) / 6)
    ours = nemenyi_quantile(num_treatments) * error / math.sqrt(tests.effective_blocks)
    of_all = nemenyi_quantile(num_treatments) * error / math.sqrt(tests.num_blocks)
    theirs = tests.critical_difference
    disagreements = []
    if abs(theirs - ours) > 1e-3:
        quantile = theirs / error * math.sqrt(tests.effective_blocks)
        why = f"its quantile of the studentized range is {quantile:.4f}, not {nemenyi_quantile(num_treatments):.4f}"
        disagreements.append(
            Disagreement(f"critical difference of {tests.effective_blocks:.3f} blocks", theirs, ours, why)
        )
    if abs(theirs - of_all) > 1e-3:
        why = f"the p-values use {tests.num_blocks} blocks, the critical difference {tests.effective_blocks:.1f}"
        disagreements.append(Disagreement("critical difference that fits the p-values", theirs, of_all, why))
    return Check("critical difference", 2, tuple(disagreements))


def _tiers(tests: Significance, names: list[str]) -> Check:
    ranks = [tests.mean_ranks[name] for name in names]
    wide = sum(abs(a - b) >= tests.critical_difference for a, b in combinations(ranks, 2))
    groups = tie_groups(ranks, tests.critical_difference)
    disagreements = []
    if len(groups) != tests.num_tiers:
        why = f"{wide} pairs of its one tier lie further apart than its critical difference"
        disagreements.append(
            Disagreement("number of groups within the critical difference", tests.num_tiers, len(groups), why)
        )
    if wide != len(tests.pairs):
        why = "so many of the pairs that it calls different reach its critical difference"
        disagreements.append(Disagreement("pairs that differ", len(tests.pairs), wide, why))
    return Check("tiers and pairs follow from the critical difference", 2, tuple(disagreements))
