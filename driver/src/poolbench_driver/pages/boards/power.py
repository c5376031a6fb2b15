"""Whether the data of a board could find a stated difference of neighbours in its order, and how much data would.

The difference is stated and not the observed one: neighbours are chosen by their ranks, and the power for an observed
difference says no more than the p-value of the same test (Hoenig and Heisey 2001, "The abuse of power").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np

from poolbench.errors import ConfigError, NotFoundError
from poolbench_driver.contract.abilities import AT_LAYER, HasUnits, KeepsAnswers
from poolbench_driver.contract.metrics import is_higher_better
from poolbench_driver.contract.page import Column, Heads, Line, Table
from poolbench_driver.pages.boards.ranking import LEVEL, RankBoard, board_of
from poolbench_driver.pages.plain import number
from poolbench_driver.statistics.mcnemar import SUFFICIENT, mcnemar_power, mcnemar_size, shares_of
from poolbench_driver.statistics.paired_power import paired_power, paired_size
from poolbench_driver.statistics.wilcoxon import least_p

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import BoardSpec, FinishedRun, SuiteInfo

#: Most blocks and items that are tried.
MOST, MOST_ITEMS = 10_000, 100_000
#: Deviations below this share of the values are rounding: the same numbers, added in another order.
_ROUNDING = 1e-12

#: Values of a board by entrant and block.
Values = Mapping[str, Mapping[str, float]]
#: Answers by block, entrant, and what is averaged over (run and layer; nothing where entrants are compared as they
#: are), then by item.
_AnswersAt = dict[str, dict[str, dict[tuple[str, str], dict[str, bool]]]]


@dataclass(frozen=True)
class ItemPower:
    """Power of McNemar's test of two neighbours on the items of one block, for the stated difference.

    The share of items that only one side gets right is the observed share, or the difference if this is larger.
    """

    block: str
    layer: str | None  # where the board averages over layers
    n: int  # items that both answered
    difference: float  # share of right answers of the first, minus that of the second
    power: float
    items_needed: int | None  # smallest number with a power of .8; None above MOST_ITEMS


@dataclass(frozen=True)
class PairPower:
    """Power of a paired t-test of two neighbours over the blocks that have a value of both, for the stated difference.

    Attributes:
        metric: Metric that the board is ranked by.
        block: Unit that `n` counts, such as `concept`.
        difference: Mean over the blocks of the first entrant's value minus the next entrant's; None without a block.
        deviation: Standard deviation of the differences (ddof 1); None below two blocks.
        planned: The stated difference.
        power: Power at `n` blocks to find `planned`, assuming that the deviation is exact; None with a reason.
        blocks_needed: Smallest number of blocks with a power of .8; None with a reason.
        reason: Why a figure is None, or that the mean difference contradicts the order of ranks.
        items: Power of the test of items by block, if the suite stores the answers to single items.
    """

    metric: str
    entrant: str
    next: str
    block: str
    n: int
    difference: float | None
    deviation: float | None
    planned: float
    power: float | None
    blocks_needed: int | None
    reason: str
    items: Sequence[ItemPower] = ()

    @property
    def decided(self) -> bool:
        """Return whether the data at hand would find the stated difference."""
        return self.power is not None and self.power >= SUFFICIENT

    @property
    def items_needed(self) -> float | None:
        """Return the median over blocks of the number of items with a power of .8, or infinity if most have none."""
        sizes = [math.inf if item.items_needed is None else item.items_needed for item in self.items]
        return median(sizes) if sizes else None


def neighbours(
    info: SuiteInfo, runs: Sequence[FinishedRun], *, planned: float | None = None, items: bool = True
) -> list[PairPower]:
    """Return the power for each pair of neighbours on the board of some runs. The list is empty without a board.

    Args:
        info: The runs' suite.
        planned: Difference of the primary metric to find, above 0. By default, the suite's board sets the difference.
        items: Whether the answers of single items are read too.

    Raises:
        ConfigError: The runs' figures are not comparable, or the difference is out of range.
    """
    spec = info.board
    if not spec.competing or spec.primary not in spec.ranked:
        return []
    rows = [row for run in runs for row in run.tables["results"].to_pylist()]
    board = board_of(rows, spec, spec.primary)
    if board is None:
        return []
    suite = info.load()
    name, values = _units(suite, runs) if isinstance(suite, HasUnits) else (spec.unit, _cells(board))
    answers = _answers(suite, runs, spec) if items and isinstance(suite, KeepsAnswers) else {}
    planned = spec.planned_difference if planned is None else planned
    if not 0 < planned < math.inf or (answers and planned > 1):
        raise ConfigError(f"a difference of {planned:g} in {spec.primary} cannot be: give one above 0")
    return [
        _pair(board.metric, name, pair, values, planned, tuple(_of_items(*pair, answers, planned)))
        for pair in pairwise(board.entrants)
    ]


def _cells(board: RankBoard) -> Values:
    """Return the values of a board by entrant and block. Missing values and worst-rank nulls are left out."""
    return {
        entrant: {
            block: value for block, value in zip(board.blocks, column.tolist(), strict=True) if math.isfinite(value)
        }
        for entrant, column in zip(board.entrants, board.values_NK.T, strict=True)
    }


def _units(suite: HasUnits, runs: Sequence[FinishedRun]) -> tuple[str, Values]:
    """Return the name and the values of the suite's units. An entrant in several runs has the mean over these runs."""
    units_by_run = [suite.units(run) for run in runs]
    gathered: dict[str, dict[str, list[float]]] = {}
    for units in units_by_run:
        for entrant, by_unit in units.values.items():
            for unit, value in by_unit.items():
                gathered.setdefault(entrant, {}).setdefault(unit, []).append(value)
    means = {
        entrant: {unit: fmean(values) for unit, values in by_unit.items()} for entrant, by_unit in gathered.items()
    }
    return units_by_run[0].name, means


def _pair(
    metric: str, block: str, pair: tuple[str, str], values: Values, planned: float, items: tuple[ItemPower, ...]
) -> PairPower:
    first, second = (values.get(entrant, {}) for entrant in pair)
    shared = sorted(first.keys() & second.keys())
    differences = np.array([first[name] - second[name] for name in shared])
    scale = max((abs(value) for side in (first, second) for value in side.values()), default=0.0)
    mean = float(differences.mean()) if shared else None
    deviation = float(differences.std(ddof=1)) if len(shared) > 1 else None
    power, needed, reason = None, None, ""
    if mean is None or deviation is None:
        reason = f"{len(shared) or 'no'} {block} has a value of both; a paired test needs two"
    else:
        effect = planned / deviation if deviation > _ROUNDING * scale else math.inf
        power, needed = paired_power(effect, len(shared)), paired_size(effect, SUFFICIENT, most=MOST)
        if needed is None:
            reason = f"the difference is too small for {MOST:,} {block}s"
        elif abs(mean) > _ROUNDING * scale and (mean > 0) is not is_higher_better(metric):
            reason = "the ranks are in favour of the first, the mean difference of the second"
    return PairPower(metric, *pair, block, len(shared), mean, deviation, planned, power, needed, reason, items)


def _answers(suite: KeepsAnswers, runs: Sequence[FinishedRun], spec: BoardSpec) -> _AnswersAt:
    """Return the answers to single items. Runs without a table of answers are left out."""
    gathered: _AnswersAt = {}
    for run in runs:
        try:
            answers = suite.answers(run)
        except NotFoundError:
            continue
        for block, by_entrant in answers.items():
            for name, by_item in by_entrant.items():
                entrant, _, layer = name.partition(AT_LAYER) if spec.averaged else (name, "", "")
                at = (run.id, layer) if spec.averaged else ("", "")
                gathered.setdefault(block, {}).setdefault(entrant, {}).setdefault(at, {}).update(by_item)
    return gathered


def _of_items(entrant: str, following: str, answers: _AnswersAt, planned: float) -> Iterator[ItemPower]:
    for block, by_entrant in answers.items():
        first_at, second_at = by_entrant.get(entrant, {}), by_entrant.get(following, {})
        for at, first in first_at.items():
            second = second_at.get(at, {})
            if shared := first.keys() & second.keys():
                only_first, only_second = (
                    sum(one[item] and not other[item] for item in shared) / len(shared)
                    for one, other in ((first, second), (second, first))
                )
                shares = shares_of(planned, only_first + only_second)
                power = mcnemar_power(*shares, len(shared), LEVEL).power
                needed = mcnemar_size([shares], SUFFICIENT, LEVEL, MOST_ITEMS)
                yield ItemPower(block, at[1] or None, len(shared), only_first - only_second, power, needed)


def sentence(pair: PairPower) -> str:
    """Say whether the blocks of the first two entrants suffice to find the stated difference, or how many would."""
    names, blocks = f"{pair.entrant} and {pair.next}", f"{pair.n} {pair.block}{'' if pair.n == 1 else 's'}"
    are = "is" if pair.n == 1 else "are"
    if pair.power is None:
        return f"{blocks} {are} too few to compare the first two on {pair.metric} ({names}): a paired test needs two."
    find = f"to find a difference of {pair.planned:g} in {pair.metric} between the first two"
    test = f"({names}; a paired t-test has a power of {_decimal(pair.power)})"
    if pair.blocks_needed is None:
        return f"{blocks} {are} too few {find}, and so would be {MOST:,} {test}."
    but = f"; {pair.reason}" if pair.reason else ""
    if pair.decided:
        fewest = next(number for number in count(1) if least_p(number) <= LEVEL)
        of_ranks = f"; a test of ranks needs {fewest}" if pair.n < fewest else ""
        return f"{blocks} {are} enough {find} {test}{of_ranks}{but}."
    return f"{blocks} {are} too few {find} {test}: {pair.blocks_needed:,} would be enough{but}."


def _decimal(power: float) -> str:
    """Format a power with two decimals. An insufficient power is never rounded up to a sufficient power."""
    return f"{power if power >= SUFFICIENT else min(power, SUFFICIENT - 0.01):.2f}".removeprefix("0")


def power_table(pairs: Sequence[PairPower]) -> Table:
    """Return the pairs as a table."""
    block = pairs[0].block
    has_items = any(pair.items for pair in pairs)
    of_items = ["items decide", "items needed"] if has_items else []
    heads: Heads = [
        "entrant", Column("next", is_text=True), f"{block}s", "difference", f"power for {pairs[0].planned:g}",
        f"{block}s needed", *of_items, Column("note", is_text=True),
    ]  # fmt: skip
    lines = [
        Line.of(
            pair.entrant,
            pair.next,
            str(pair.n),
            number(pair.difference, "+.4g"),
            number(pair.power, ".3f"),
            number(pair.blocks_needed, ",d"),
            *(_items(pair) if has_items else []),
            pair.reason,
        )
        for pair in pairs
    ]
    return Table.of(heads, lines)


def _items(pair: PairPower) -> list[str]:
    """Return on how many blocks (and layers) the items at hand decide, and the median number that would."""
    if pair.items_needed is None:
        return ["", ""]
    decide = sum(item.power >= SUFFICIENT for item in pair.items)
    needed = "no number" if math.isinf(pair.items_needed) else f"{math.ceil(pair.items_needed):,}"
    return [f"{decide} of {len(pair.items)}", needed]
