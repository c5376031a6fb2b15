"""The public leaderboard's table: scores of models by probing set, and winning rates under every definition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import InputError, shown
from poolbench.grouping import grouped
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench_corpora.probing import suite_sets
from poolbench_driver.contract.source import TableLine, read_csv
from poolbench_driver.pages.text import interval, items, paragraph, table
from poolbench_driver.statistics.winning_rate import (
    Scale,
    mean_winning_rate,
    present_means,
    published_winning_rate,
    scaled_ranks,
    winning_rate_resamples,
)

TYPES = ("morphology", "syntax", "semantics", "reasoning", "discourse")
#: Definitions of the winning rate by name, with the scale of their ranks; `pairs` has no ranks.
DEFINITIONS: Mapping[str, Scale | None] = {"pairs": None, "row": "row", "column": "column"}
#: Shares of the training data that the public site shows: the whole, and that of FlashHolmes.
SHOWN_PORTIONS = (1.0, 1 / 32)
NUM_RESAMPLES = 1000

SET, PORTION = "probing dataset", "train portion"
#: Columns that are not models, in lower case; the first has the numbers of the rows.
_TYPE = ("linguistic subfield", "linguistic competencies")
_PHENOMENON = "linguistic phenomena"
_OTHERS = {"", "unnamed: 0", SET, PORTION, *_TYPE, _PHENOMENON, "probe type", "probe", "seed"}
#: Ends of the names of columns with standard deviations.
_SPREAD = (" std", "_std", "-std", ".std", " sd", "_sd")


@dataclass(frozen=True)
class ScoreTable:
    """Scores of M models on N probing sets."""

    models: Sequence[str]
    sets: Sequence[str]
    types: np.ndarray  # type of each set; empty if unknown
    phenomena: np.ndarray  # phenomenon of each set
    scores: np.ndarray  # higher is better, NaN if missing [M, N]
    portion: float  # share of the training data behind the scores
    notes: Sequence[str]  # what was left out or not known

    @classmethod
    def noted(
        cls,
        models: Sequence[str],
        descriptions: Mapping[str, tuple[str, str]],
        scores: np.ndarray,
        portion: float,
        notes: Sequence[str] = (),
    ) -> "ScoreTable":
        """Build a table and note unknown or untyped sets and missing scores, given (type, phenomenon) by set."""
        notes = list(notes)
        if unknown := [name for name in descriptions if name not in suite_sets()]:
            notes.append(f"sets that the public suite does not have: {len(unknown)}, such as {unknown[0]}")
        if untyped := [name for name, (kind, _) in descriptions.items() if not kind]:
            notes.append(f"sets without a type, which count overall only: {len(untyped)}")
        if missing := int(np.isnan(scores).sum()):
            notes.append(f"missing scores: {missing} of {scores.size}")
        types, phenomena = (np.array(column) for column in zip(*descriptions.values(), strict=True))
        return cls(models, list(descriptions), types, phenomena, scores, portion, notes)

    @cached_property
    def kinds(self) -> list[str]:
        """Return the types of phenomenon that have sets."""
        return [kind for kind in TYPES if (self.types == kind).any()]

    def of(self, kind: str = "") -> np.ndarray:
        """Return the scores [M, n] on the sets of a type, or on all sets if `kind` is empty."""
        return self.scores[:, self.types == kind] if kind else self.scores

    def weights(self, kind: str = "") -> np.ndarray:
        """Return a row of ones and R rows of bootstrap weights over the phenomena of the sets of a type [1 + R, n]."""
        groups = self.phenomena[self.types == kind] if kind else self.phenomena
        return np.concatenate([np.ones((1, len(groups))), group_weights(groups, NUM_RESAMPLES, 0)])


def read_scores(file: Path, portion: float | None = None) -> ScoreTable:
    """Read the scores of a CSV file with one row per probing set and portion, and one column per model.

    Rows of several seeds are averaged, as the public site does.

    Args:
        portion: Share of the training data to read. The default is the share that the public site shows: 1, or
            else 1/32, or else the largest.

    Raises:
        InputError: The file cannot be used; the message names file and line.
    """
    head, lines = read_csv(file, [SET])
    notes = []
    spread = [name for name in head if name.lower().endswith(_SPREAD)]
    models = [name for name in head if name.lower() not in _OTHERS and name not in spread]
    if spread:
        notes.append(f"columns with standard deviations are not read: {len(spread)}")
    if len(models) < 2:
        raise InputError(f"{file}, line 1: columns of models: {len(models)}; at least two are needed for winning rates")
    by_portion = grouped((_portion(line), line) for line in lines)
    if portion is None:
        portion = next((share for share in SHOWN_PORTIONS if share in by_portion), max(by_portion))
    elif portion not in by_portion:
        shares = ", ".join(f"{share:.4g}" for share in sorted(by_portion))
        raise InputError(f"{file} has no rows of {portion:.4g} of the training data, which is joined; it has {shares}")
    if len(by_portion) > 1:
        notes.append(f"rows of other portions are not read: {len(lines) - len(by_portion[portion])}")
    by_set = _by_set(by_portion[portion])
    descriptions = {name: _described(name, group[0]) for name, group in by_set.items()}
    by_seed = ([[line.number(model) for line in group] for model in models] for group in by_set.values())
    scores = np.stack([present_means(np.array(seed_scores)) for seed_scores in by_seed], axis=1)
    return ScoreTable.noted(models, descriptions, scores, portion, notes)


def board(scores: ScoreTable) -> list[dict[str, Any]]:
    """Return one object per model, the best by pairs first, with winning rates from 0 to 100, or None if undefined.

    `by_type` has the same definitions over the sets of each type, with ranks scaled within the type as the site does,
    and `column_overall`: ranks scaled over all sets, as in the figures of the paper.
    """
    overall = _rates(scores.scores)
    by_type = {kind: _rates(scores.of(kind)) for kind in TYPES}
    scaled = scaled_ranks(scores.scores, "column")
    for kind in TYPES:
        by_type[kind]["column_overall"] = 100 * present_means(scaled[:, scores.types == kind])
    rows = [
        {
            "entrant": model,
            "winning_rate": _at(overall, number),
            "by_type": {kind: _at(rates, number) for kind, rates in by_type.items()},
        }
        for number, model in enumerate(scores.models)
    ]
    return sorted(rows, key=lambda row: -(row["winning_rate"]["pairs"] or 0.0))


def board_markdown(source: Path, scores: ScoreTable, rows: Sequence[Mapping[str, Any]], joined: str = "") -> str:
    """Return the board as text, with intervals of the winning rates over pairs, and what was left out.

    Args:
        joined: Note on the entrants that were joined, and on which sets. Their rows have `joined` and are highlighted.
    """
    num_recorded = sum(not row.get("joined") for row in rows)
    share = "all" if scores.portion == 1 else f"{scores.portion:.4g}"
    intro = paragraph(
        f"Published scores, recorded by others in {source.name}: {num_recorded} models on {len(scores.sets)} "
        f"probing sets of {len(set(scores.phenomena))} phenomena, {share} of the training data. Winning rates in "
        "percent, by pairs of models and by scaled ranks (row, column); by type over pairs. Intervals of 95 % come "
        "from a bootstrap over phenomena. "
        + (f"{joined[0].upper()}{joined[1:]}." if joined else "They are never ranked together with those of a run.")
    )
    samples = 100 * winning_rate_resamples(scores.scores, scores.weights()[1:])
    intervals = {model: percentile_interval(column) for model, column in zip(scores.models, samples.T, strict=True)}
    head = ["", "entrant", "pairs", "95 % interval", "row", "column", *TYPES]
    lines = [
        [
            str(place),
            f"**{row['entrant']}**" if row.get("joined") else row["entrant"],
            shown_rate(row["winning_rate"]["pairs"]),
            interval(intervals[row["entrant"]], ".1f"),
            *(shown_rate(row["winning_rate"][name]) for name in ("row", "column")),
            *(shown_rate(row["by_type"][kind]["pairs"]) for kind in TYPES),
        ]
        for place, row in enumerate(rows, start=1)
    ]
    return "\n\n".join(filter(None, ["## Recorded board: holmes", intro, table(head, lines), items(scores.notes)]))


def shown_rate(value: float | None) -> str:
    """Format a rate with one decimal, or return "" if there is none."""
    return "" if value is None else f"{value:.1f}"


def _rates(scores_MN: np.ndarray) -> dict[str, np.ndarray]:
    """Return the winning rates of each model by definition, in percent, NaN where there is none."""
    if scores_MN.shape[1] == 0:
        return {name: np.full(len(scores_MN), np.nan) for name in DEFINITIONS}
    return {
        name: 100 * (mean_winning_rate(scores_MN) if scale is None else published_winning_rate(scores_MN, scale))
        for name, scale in DEFINITIONS.items()
    }


def _at(rates: Mapping[str, np.ndarray], number: int) -> dict[str, float | None]:
    return {name: float(values[number]) if np.isfinite(values[number]) else None for name, values in rates.items()}


def _portion(line: TableLine) -> float:
    """Return the share of the training data of a line; without such a column it is 1."""
    if PORTION not in line.cells:
        return 1.0
    portion = line.number(PORTION)
    if not 0 < portion <= 1:
        raise InputError(f"{line.where}: the train portion {shown(line.cells[PORTION])} is not between 0 and 1")
    return portion


def _by_set(lines: Sequence[TableLine]) -> dict[str, list[TableLine]]:
    """Return the lines of each set, one per seed. Raise InputError for a line that repeats another one."""
    index: dict[tuple[str, str], TableLine] = {}
    for line in lines:
        name = line.cells[SET]
        if not name:
            raise InputError(f"{line.where}: the column {SET!r} is empty; it names the probing set")
        key = (name, line.cells.get("seed", ""))
        if key in index:
            raise InputError(f"{line.where}: {shown(name)} is there already, with the same portion: {index[key].where}")
        index[key] = line
    return grouped((name, line) for (name, _), line in index.items())


def _described(name: str, line: TableLine) -> tuple[str, str]:
    """Return type and phenomenon of a set: as the file says, else as the public suite has them, else none."""
    kind, phenomenon = described(name)
    kind = next((line.cells[column].lower() for column in _TYPE if line.cells.get(column)), kind)
    if kind and kind not in TYPES:
        raise InputError(f"{line.where}: unknown type of phenomenon {shown(kind)}; use {', '.join(TYPES)}")
    return kind, line.cells.get(_PHENOMENON) or phenomenon


def described(name: str) -> tuple[str, str]:
    """Return type and phenomenon of a set of the public suite. For any other set, return "" and its name."""
    entry = suite_sets().get(name)
    return (entry.type, entry.phenomenon) if entry else ("", name)
