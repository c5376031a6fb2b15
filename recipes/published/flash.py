"""How far a recorded table of a small share of the training data keeps the order of the whole one (FlashHolmes)."""

from collections.abc import Sequence

import numpy as np

from poolbench.errors import InputError
from poolbench_driver.pages.text import table
from poolbench_driver.statistics.correlation import kendall
from poolbench_driver.statistics.winning_rate import mean_winning_rate, published_winning_rate
from poolbench_driver.suites.holmes.recordings import DEFINITIONS, ScoreTable

#: Fewest common models whose order is compared.
FEWEST_MODELS = 12
HEAD = ("sets", "definition", "Kendall's tau", "95th percentile of rank changes", "1.96 sd / root of models")


def flash_markdown(whole: ScoreTable, share: ScoreTable) -> str:
    """Return the agreement of two tables over their common models: with all sets of each, and with the common sets.

    Raises:
        InputError: Fewer than `FEWEST_MODELS` models or no set are in both tables.
    """
    models = [name for name in whole.models if name in set(share.models)]
    sets = [name for name in whole.sets if name in set(share.sets)]
    if len(models) < FEWEST_MODELS or not sets:
        raise InputError(
            f"the tables share {len(models)} models and {len(sets)} sets; {FEWEST_MODELS} models and a set are needed"
        )
    lines = []
    for what, names in (("all", None), ("common", sets)):
        first, second = (
            chosen(board.scores, (board.models, models), (board.sets, names or board.sets)) for board in (whole, share)
        )
        label = f"{what} ({first.shape[1]} and {second.shape[1]})"
        lines += [[label, name, *agreement(first, second, name)] for name in DEFINITIONS]
    return table(HEAD, lines)


def chosen(values_MN: np.ndarray, *axes: tuple[Sequence[str], Sequence[str]]) -> np.ndarray:
    """Return some rows and columns; for each axis its names, and those that are wanted, in their order."""
    return values_MN[np.ix_(*([list(names).index(name) for name in selection] for names, selection in axes))]


def agreement(first: np.ndarray, second: np.ndarray, definition: str) -> list[str]:
    """Return how far two tables of scores [M, N] give M entrants one order, as text in the order of `HEAD`."""
    from scipy import stats

    scale = DEFINITIONS[definition]
    rates = [
        mean_winning_rate(board) if scale is None else published_winning_rate(board, scale) for board in (first, second)
    ]
    is_finite = np.isfinite(rates[0]) & np.isfinite(rates[1])
    if is_finite.sum() < FEWEST_MODELS:
        return [f"{is_finite.sum()} models have a scale"] * 3
    one, other = (rate[is_finite] for rate in rates)
    changes = stats.rankdata(-one) - stats.rankdata(-other)
    figures = (
        kendall(one, other),
        float(np.percentile(np.abs(changes), 95)),
        float(1.96 * np.std(changes, ddof=1) / np.sqrt(len(changes))),
    )
    return [f"{value:.2f}" for value in figures]
