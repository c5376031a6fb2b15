"""Ranks of strategies over concepts, from result rows: boards, pairs, families, models, layers."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench.pooling.registry import STRATEGIES
from poolbench.statistics.inputs import StatisticError
from poolbench_driver.pages.boards.agreement import RankAgreement, rank_agreements
from poolbench_driver.pages.boards.ranking import LEVEL, RankBoard, rank_board
from poolbench_driver.statistics.ranks import best_first, mean_rank_intervals, mean_ranks
from poolbench_driver.statistics.winning_rate import discriminability, mean_winning_rate, rank_resolution

Cell = Mapping[str, Any]


@dataclass(frozen=True)
class FamilyRank:
    """Mean rank of a family's strategies on a board."""

    family: str
    strategies: tuple[str, ...]  # its strategies on the board, best first
    mean_rank: float | None  # mean over blocks of its strategies' mean rank in the block; None without ranks
    interval: tuple[float, float] | None  # from the cluster bootstrap over blocks; None with fewer than two
    num_blocks: int  # blocks in which it has a rank


def boards_by(cells: Iterable[Cell], metric: str, part: Callable[[Cell], str | None]) -> dict[str, RankBoard]:
    """Return a board for each part of the cells, e.g. a concept family, model or layer.

    `part` returns the part of a cell, or None for a cell to leave out. Parts without a board are left out. Raise
    ConfigError as `rank_board` does.
    """
    parts = grouped((name, cell) for cell in cells if cell["metric"] == metric and (name := part(cell)) is not None)
    boards = {name: rank_board(part_cells, metric) for name, part_cells in sorted(parts.items())}
    return {name: board for name, board in boards.items() if board is not None}


def family_ranks(board: RankBoard, family_of: Mapping[str, str]) -> list[FamilyRank]:
    """Return the mean rank of each strategy family, best first. A strategy without family is its own family."""
    members = grouped((family_of.get(name, name), k) for k, name in enumerate(board.entrants))
    ranks_NF = np.stack([mean_ranks(board.ranks_NK[:, ks].T) for ks in members.values()], axis=1)
    means_F, counts_F = mean_ranks(ranks_NF), np.isfinite(ranks_NF).sum(axis=0)
    ranks = [
        FamilyRank(
            name, tuple(board.entrants[k] for k in ks), float(mean) if num_blocks else None, interval, int(num_blocks)
        )
        for (name, ks), mean, interval, num_blocks in zip(
            members.items(), means_F, mean_rank_intervals(ranks_NF), counts_F, strict=True
        )
    ]
    return [ranks[place] for place in best_first(means_F, counts_F)]


def winning_rates(board: RankBoard) -> dict[str, float]:
    """Return the share of (concept, other strategy) pairs that each strategy wins, ties one half."""
    return dict(zip(board.entrants, mean_winning_rate(-board.ranks_NK.T).tolist(), strict=True))


def block_agreement(board: RankBoard) -> dict[str, float]:
    """Return, by concept, Kendall's tau of its order of strategies with the overall order. NaN if all are tied."""
    return dict(zip(board.blocks, discriminability(-board.ranks_NK.T).tolist(), strict=True))


#: The family of strategies that are no longer registered.
UNREGISTERED = "not registered"


@dataclass(frozen=True)
class PartTable:
    """Mean ranks by strategy (rows) and part of the cells (columns), e.g. concept families."""

    parts: list[str]
    rows: list[tuple[str, list[str]]]


@dataclass(frozen=True)
class RanksView:
    """The part of the page about ranks: `boards` and `tests` for every ranked metric, the rest for `primary`."""

    primary: str  # the metric whose ranks are shown in full
    limit: str = ""  # what its concepts cannot show, whatever the values; empty where strategies can differ
    one_concept: str = ""  # the only concept, which has no board of ranks: `standings` are its values then, best first
    shows_holm: bool = True  # whether a p after Holm's correction over all pairs can reach the level
    boards: dict[str, RankBoard] = field(default_factory=dict)
    tests: list[Row] = field(default_factory=list)
    standings: list[Row] = field(default_factory=list)
    pairs: list[Row] = field(default_factory=list)
    concept_families: PartTable | None = None
    models: PartTable | None = None
    strategy_families: list[FamilyRank] = field(default_factory=list)
    layers: list[RankAgreement] = field(default_factory=list)
    concepts: list[Row] = field(default_factory=list)
    resolution: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the primary metric, and the tests of all, as JSON values."""
        return {column.name: getattr(self, column.name) for column in fields(self) if column.name in _PLAIN} | {
            "concept_families": self.concept_families and asdict(self.concept_families),
            "models": self.models and asdict(self.models),
            "strategy_families": [asdict(family) for family in self.strategy_families],
            "layers": [asdict(layer) for layer in self.layers],
        }


#: Fields of a view that are JSON values as they are.
_PLAIN = ("primary", "limit", "one_concept", "tests", "standings", "pairs", "concepts", "resolution")


def build_ranks(rows: Sequence[Row], primary: str) -> RanksView:
    """Return the boards of all ranked metrics, and the primary one in full."""
    boards = {
        metric: {b: rank_board(rows, metric, complete=b == "complete") for b in ("all", "complete")}
        for metric in ranked_metrics(rows)
    }
    tests = [
        {"metric": board.metric, "board": board.board, "concepts": len(board.blocks), **_tested(board)}
        for metric_boards in boards.values()
        for board in metric_boards.values()
        if board is not None
    ]
    main = {
        metric: metric_boards["all"] for metric, metric_boards in boards.items() if metric_boards["all"] is not None
    }
    board = main.get(primary)
    if board is None:
        return RanksView(primary, boards=main, tests=tests)
    if len(board.blocks) == 1:
        values = [
            {"strategy": name, "value": value if math.isfinite(value) else None}
            for name, value in zip(board.entrants, board.values_NK[0].tolist(), strict=True)
        ]
        return RanksView(primary, limit_of(board), board.blocks[0], boards=main, tests=tests, standings=values)
    parts = partial(boards_by, rows, primary)
    families = {concept.id: concept.family for concept in CONCEPTS.all()}
    return RanksView(
        primary=primary,
        limit=limit_of(board),
        shows_holm=board.least_p * len(board.pairwise) <= LEVEL,
        boards=main,
        tests=tests,
        standings=_standings(board),
        pairs=sorted(board.pairwise, key=lambda pair: (pair["p"] is None, pair["p"])),
        concept_families=_part_table(parts(lambda row: families.get(row["concept"], UNREGISTERED)), board),
        models=_part_table(parts(lambda row: row["model"]), board),
        strategy_families=family_ranks(board, strategy_families(board.entrants)),
        layers=_layers(rows, primary),
        concepts=[{"concept": name, "tau": _known(tau)} for name, tau in block_agreement(board).items()],
        resolution=_resolution(board),
    )


def tells_apart(board: RankBoard) -> bool:
    """Return whether a paired test can tell two strategies apart over so many concepts."""
    return board.least_p <= LEVEL


def limit_of(board: RankBoard) -> str:
    """Return why a board has too few concepts to tell any two strategies apart, or "" if it has enough."""
    if tells_apart(board):
        return ""
    if len(board.blocks) == 1:
        return "One concept has no board of ranks, because strategies are compared over concepts."
    return (
        f"With {len(board.blocks)} concepts no two strategies can be distinguished: a paired test of two strategies "
        f"cannot give a p below {board.least_p:.3g}."
    )


def _tested(board: RankBoard) -> Row:
    """Return the summary of a board, without the critical difference where no two strategies can be distinguished."""
    return board.summary if tells_apart(board) else {**board.summary, "critical_difference": None, "tie_groups": []}


def letters(board: RankBoard) -> dict[str, str]:
    """Return letters by strategy. Strategies within the critical difference share a letter. Without it, return {}."""
    letters_by_strategy: dict[str, str] = {}
    for number, group in enumerate(_tested(board)["tie_groups"]):
        for name in group:
            letters_by_strategy[name] = letters_by_strategy.get(name, "") + chr(ord("a") + number % 26)
    return letters_by_strategy


def rank_text(mean: float | None, interval: tuple[float | None, float | None] | None) -> str:
    """Format a mean rank with its interval if it has one. Return "" without a mean rank."""
    if mean is None or math.isnan(mean):
        return ""
    if interval is None or interval[0] is None or interval[1] is None:
        return f"{mean:.2f}"
    return f"{mean:.2f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def ranked_metrics(rows: Iterable[Row]) -> list[str]:
    """Return the metrics that the run of these rows ranked, in the order of the rows."""
    ranks = (row for row in rows if row["metric"] == "rank.mean")
    return list(dict.fromkeys(json.loads(row["params"]).get("of", "") for row in ranks))


def _standings(board: RankBoard) -> list[Row]:
    """Return one line per strategy: rank, letters of ties, winning rate, and comparison with the best strategy."""
    rates, marks = winning_rates(board), letters(board)
    against = {pair["other"]: pair for pair in board.pairwise if pair["strategy"] == board.entrants[0]}
    return [
        {
            "strategy": name,
            "rank": rank_text(measure.value, (measure.ci_low, measure.ci_high)),
            "groups": marks.get(name, ""),
            "winning_rate": _known(rates[name]),
            "best": against.get(name),
        }
        for name, measure in zip(board.entrants, board.measures, strict=True)
    ]


def strategy_families(names: Iterable[str]) -> dict[str, str]:
    """Return the family of each registered strategy. Parameters in a name are ignored."""
    registered = {spec.id: spec.family for spec in STRATEGIES.all()}
    return {name: family for name in names if (family := registered.get(name.partition(":")[0])) is not None}


def _part_table(boards: Mapping[str, RankBoard], order: RankBoard) -> PartTable | None:
    """Return mean ranks within each part, in the order of the whole board, or None with fewer than two parts."""
    if len(boards) < 2:
        return None
    cells: dict[str, dict[str, str]] = {
        part: {
            name: rank_text(measure.value, (measure.ci_low, measure.ci_high))
            for name, measure in zip(board.entrants, board.measures, strict=True)
        }
        for part, board in boards.items()
    }
    heads = [f"{part} ({len(board.blocks)})" for part, board in boards.items()]
    return PartTable(heads, [(name, [cells[part].get(name, "") for part in boards]) for name in order.entrants])


def _layers(rows: Sequence[Row], primary: str) -> list[RankAgreement]:
    """Return agreement of the ranks on each pair of layers of a model."""
    layered = [row for row in rows if row["layer"] is not None]
    by_model = {
        model: boards_by([row for row in layered if row["model"] == model], primary, lambda row: f"{row['layer']:>3}")
        for model in sorted({row["model"] for row in layered})
    }
    models = [model for model, boards in by_model.items() if boards]
    agreements: list[RankAgreement] = []
    for model in models:
        prefix = f"{model} " if len(models) > 1 else ""
        board_by_layer = {f"{prefix}layer {layer.strip()}": board for layer, board in by_model[model].items()}
        agreements += rank_agreements(board_by_layer)
    return agreements


def _resolution(board: RankBoard) -> float | None:
    try:
        return rank_resolution(-board.ranks_NK.T)
    except StatisticError:
        return None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
