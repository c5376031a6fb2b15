"""What the source of the published tables says of their cells, and what a check of it found."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Mean:
    """A mean that the source gives, over the `concepts` of a strategy or the `strategies` of a concept."""

    model: str
    over: str
    of: str
    column: str
    value: float | None


@dataclass(frozen=True)
class LeaderboardLine:
    """A line of the leaderboard: a rank, and means over the models by column."""

    rank: int
    strategy: str
    family: str
    supervision: str
    means: Mapping[str, float]


@dataclass(frozen=True)
class Significance:
    """The source's tests of differences between strategies on D1."""

    friedman_p: float
    critical_difference: float
    num_blocks: int
    effective_blocks: float
    num_tiers: int
    concepts: tuple[str, ...]  # concepts of its blocks, which it does not name: they follow from its mean ranks
    mean_ranks: Mapping[str, float]
    pairs: Mapping[tuple[str, str], float]  # p-value of each pair that it calls different


@dataclass(frozen=True)
class Stated:
    """All that the source says of its cells."""

    means: tuple[Mean, ...]
    leaderboard: tuple[LeaderboardLine, ...]
    significance: Significance


@cache
def stated() -> Stated:
    """Return what the source says, from the files of `data/`."""
    tests = yaml.safe_load((DATA / "significance.yaml").read_text("utf-8"))
    significance = Significance(
        **{**tests, "concepts": tuple(tests["concepts"])},
        mean_ranks={row["strategy"]: float(row["mean_rank"]) for row in _lines("mean_ranks")},
        pairs={(row["first"], row["second"]): float(row["p_value"]) for row in _lines("pairs")},
    )
    names = ("model", "over", "of")
    means = tuple(
        Mean(row["model"], row["over"], row["of"], column, float(text) if text else None)
        for row in _lines("means")
        for column, text in row.items()
        if column not in names
    )
    return Stated(means, tuple(map(_leaderboard_line, _lines("leaderboard"))), significance)


def _leaderboard_line(row: Mapping[str, str]) -> LeaderboardLine:
    identity = {name: row[name] for name in ("strategy", "family", "supervision")}
    means = {name: float(text) for name, text in row.items() if name not in identity and name != "rank"}
    return LeaderboardLine(rank=int(row["rank"]), **identity, means=means)


def _lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / f"{name}.csv").read_text("utf-8").splitlines()))


class Meaning(StrEnum):
    """What a disagreement of a check means."""

    COPY = "the copy is damaged"  # the source agrees with itself here
    SOURCE = "the source disagrees with itself"
    ROUNDING = "the source tested unrounded cells"


@dataclass(frozen=True)
class Disagreement:
    """A figure of the table, and the one that its own cells give."""

    where: str
    theirs: Any
    ours: Any
    why: str = ""


@dataclass(frozen=True)
class Check:
    """One kind of figure, compared with what the cells give."""

    name: str
    num_compared: int
    disagreements: tuple[Disagreement, ...] = ()
    meaning: Meaning = Meaning.SOURCE
