"""Compare boards of a part of the cells: of families, models, layers or concepts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from poolbench.statistics.bootstrap import NUM_RESAMPLES, bootstrap_counts, percentile_interval
from poolbench.statistics.correlation import MIN_POINTS, spearman
from poolbench.statistics.ranks import mean_rank_intervals, mean_ranks
from poolbench.statistics.winning_rate import discriminability, mean_winning_rate
from poolbench.statuses import Status
from poolbench_driver.pages.boards.ranking import RankBoard, rank_board

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class FamilyRank:
    """Mean rank of a family's strategies on a board."""

    family: str
    strategies: tuple[str, ...]  # its strategies on the board, best first
    mean_rank: float | None  # mean over blocks of its strategies' mean rank in the block; None without ranks
    interval: tuple[float, float] | None  # from the cluster bootstrap over blocks; None with fewer than two
    num_blocks: int  # blocks in which it has a rank


@dataclass(frozen=True)
class RankAgreement:
    """Spearman correlation of the strategies' mean ranks on two boards, e.g. of two layers."""

    first: str
    second: str
    value: float | None  # correlation over the strategies on both boards; None if it cannot be computed
    interval: tuple[float, float] | None  # from a bootstrap over the blocks of both
    num_strategies: int  # strategies on both
    status: Status = Status.OK  # `ok`, `too_few` (under 3 strategies) or `collapsed` (all tied)


def boards_by(cells: Iterable[Cell], metric: str, part: Callable[[Cell], str | None]) -> dict[str, RankBoard]:
    """Return a board for each part of the cells, e.g. a concept family, model or layer.

    `part` returns the part of a cell, or None for none. Parts without a board are left out. Raise ConfigError as
    `rank_board` does.
    """
    parts: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell["metric"] == metric and (name := part(cell)) is not None:
            parts[name].append(cell)
    boards = {name: rank_board(part_cells, metric) for name, part_cells in sorted(parts.items())}
    return {name: board for name, board in boards.items() if board is not None}


def family_ranks(board: RankBoard, family_of: Mapping[str, str]) -> list[FamilyRank]:
    """Return the mean rank of each strategy family, best first. A strategy without family is its own family."""
    members: dict[str, list[int]] = defaultdict(list)
    for k, name in enumerate(board.entrants):
        members[family_of.get(name, name)].append(k)
    ranks_NF = np.stack([mean_ranks(board.ranks_NK[:, ks].T) for ks in members.values()], axis=1)
    ranks = [
        FamilyRank(
            name, tuple(board.entrants[k] for k in ks), float(mean) if num_blocks else None, interval, int(num_blocks)
        )
        for (name, ks), mean, interval, num_blocks in zip(
            members.items(),
            mean_ranks(ranks_NF),
            mean_rank_intervals(ranks_NF),
            np.isfinite(ranks_NF).sum(axis=0),
            strict=True,
        )
    ]
    return sorted(ranks, key=lambda rank: np.inf if rank.mean_rank is None else rank.mean_rank)


def rank_agreements(boards: Mapping[str, RankBoard], *, seed: int = 0) -> list[RankAgreement]:
    """Return the agreement of each pair of boards, e.g. of layers or models."""
    pairs = combinations(boards.items(), 2)
    return [_agreement(a, first, b, second, seed) for (a, first), (b, second) in pairs]


def _agreement(first_name: str, first: RankBoard, second_name: str, second: RankBoard, seed: int) -> RankAgreement:
    blocks = [block for block in first.blocks if block in second.blocks]
    common = [name for name in first.entrants if name in second.entrants]
    sides = [ranks_of(board, common, blocks) for board in (first, second)]
    ranked = np.isfinite(sides[0]).any(axis=0) & np.isfinite(sides[1]).any(axis=0)
    strategies = int(ranked.sum())
    if strategies < MIN_POINTS:
        return RankAgreement(first_name, second_name, None, None, strategies, Status.TOO_FEW)
    sides = [ranks[:, ranked] for ranks in sides]
    value = float(spearman(*(mean_ranks(ranks) for ranks in sides)))
    if np.isnan(value):
        return RankAgreement(first_name, second_name, None, None, strategies, Status.COLLAPSED)
    weights = bootstrap_counts(len(blocks), NUM_RESAMPLES, seed).astype(np.float64)
    samples = spearman(*(mean_ranks(ranks, weights) for ranks in sides))
    interval = percentile_interval(samples) if len(blocks) > 2 else None  # two have one resample with both
    return RankAgreement(first_name, second_name, value, interval, strategies)


def ranks_of(board: RankBoard, strategies: list[str], blocks: list[str]) -> np.ndarray:
    """Return the ranks of some strategies in some blocks of a board, [N, K]."""
    rows = [board.blocks.index(block) for block in blocks]
    return board.ranks_NK[np.ix_(rows, [board.entrants.index(name) for name in strategies])]


def winning_rates(board: RankBoard) -> dict[str, float]:
    """Return the share of (concept, other strategy) pairs that each strategy wins, ties one half."""
    return dict(zip(board.entrants, mean_winning_rate(-board.ranks_NK.T).tolist(), strict=True))


def block_agreement(board: RankBoard) -> dict[str, float]:
    """Return Kendall's tau of each concept's order of the strategies with the overall order; NaN if all are tied."""
    return dict(zip(board.blocks, discriminability(-board.ranks_NK.T).tolist(), strict=True))
