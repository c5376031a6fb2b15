"""Scores of steered texts as arrays of openings by strengths, and the choice of a strength on half of the openings.

The strength of a gain is chosen on the first half of the openings and the gain is read on the second, since the best of
several noisy figures is too high. So only the first half needs texts at every strength.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.errors import CellError, InputError
from poolbench.statuses import Status

#: Fewest openings a D2 or D3 figure is computed from: two to choose a strength on, two to read the gain on.
MIN_OPENINGS = 4


@dataclass(frozen=True, eq=False)
class SteeredTables:
    """Tables TEXTS, SCORES and FLUENCY of some directions. Their grids are made once."""

    texts: pa.Table
    scores: pa.Table
    fluency: pa.Table
    _grids: dict[tuple[SteeredTables, str, int], dict[str, ResponseGrid]] = field(
        default_factory=dict, init=False, repr=False
    )


@dataclass(frozen=True)
class FluencyRules:
    """Which strengths keep a text fluent."""

    min_perplexity_ratio: float = 0.67  # smallest perplexity ratio of a fluent strength (loops are cheap)
    max_perplexity_ratio: float = 1.5  # largest perplexity ratio of a fluent strength
    max_added_repetition: float = 0.1  # bound on the added share of repeated 4-grams of a fluent strength


@dataclass(frozen=True)
class ResponseGrid:
    """The scores and fluency of a direction under a scorer, by strength. Column 0 is unsteered.

    Texts that were not generated are NaN. Openings of the second half may have texts at few strengths only.
    """

    openings: tuple[str, ...]  # prompt ids, length P
    strengths: np.ndarray  # ascending, in the run's unit, length S; `strengths[0] == 0`
    score: np.ndarray  # P(concept) of each text, averaged over an opening's samples [P, S]
    nll: np.ndarray  # mean negative log-likelihood of the generated tokens under the unsteered model, nats [P, S]
    num_tokens: np.ndarray  # generated tokens of all samples together [P, S]
    repeated: np.ndarray  # share of repeated 4-grams, mean over the samples [P, S]
    is_first: np.ndarray  # whether an opening is of the half that a strength is chosen on, bool [P]

    @property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the openings on which a strength is chosen, and those on which the gain is computed."""
        return np.flatnonzero(self.is_first), np.flatnonzero(~self.is_first)

    def at_strengths(self, strengths: Sequence[float]) -> ResponseGrid:
        """Return the grid with only the unsteered column and the columns of `strengths` that exist."""
        mask = np.isin(self.strengths.round(9), np.round([0.0, *strengths], 9))
        return self._take(np.arange(len(self.openings)), np.flatnonzero(mask))

    def at_openings(self, rows: np.ndarray) -> ResponseGrid:
        """Return the given rows [indices]."""
        return self._take(rows, np.arange(len(self.strengths)))

    def column(self, strength: float) -> int:
        """Return the index of a strength. Raise InputError if the curve has no such strength."""
        columns = np.flatnonzero(np.isclose(self.strengths, strength, rtol=0, atol=1e-9))
        if columns.size == 0:
            have = ", ".join(f"{value:g}" for value in self.strengths)
            raise InputError(f"no texts at strength {strength:g}; the curve has {have}: add it to the strengths")
        return int(columns[0])

    def _take(self, rows: np.ndarray, columns: np.ndarray) -> ResponseGrid:
        cut = np.ix_(rows, columns)
        return ResponseGrid(
            tuple(self.openings[row] for row in rows),
            self.strengths[columns],
            self.score[cut],
            self.nll[cut],
            self.num_tokens[cut],
            self.repeated[cut],
            self.is_first[rows],
        )


def split_openings(openings: Collection[str], seed: int) -> tuple[list[str], list[str]]:
    """Return the openings on which a strength is chosen, and those on which the gain is computed, each sorted.

    The split depends only on the set of openings and the seed, so that it is known before there are texts.
    """
    ordered = np.array(sorted(openings))
    order = np.random.default_rng(seed).permutation(len(ordered))
    middle = len(ordered) // 2
    return sorted(ordered[order[:middle]].tolist()), sorted(ordered[order[middle:]].tolist())


def response_grids(
    steered: SteeredTables, unsteered: SteeredTables, scorer: str, seed: int = 0
) -> dict[str, ResponseGrid]:
    """Return one grid per `direction_key` of the steered texts, with the unsteered texts as strength 0.

    An opening is left out if it lacks a text, a score or a likelihood at a strength that other openings of its half
    have, because the values are paired. `seed` splits the openings. Raise CellError `too_few` if fewer than
    MIN_OPENINGS openings are complete.
    """
    if (unsteered, scorer, seed) not in steered._grids:
        steered._grids[unsteered, scorer, seed] = _grids(steered, unsteered, scorer, seed)
    return steered._grids[unsteered, scorer, seed]


def _grids(steered: SteeredTables, unsteered: SteeredTables, scorer: str, seed: int) -> dict[str, ResponseGrid]:
    baseline = {(prompt, 0.0): cells for (_, prompt, _), cells in _cells(unsteered, scorer).items()}
    by_direction: dict[str, dict[tuple[str, float], np.ndarray]] = {}
    for (direction, prompt, strength), cells in _cells(steered, scorer).items():
        if strength != 0:
            by_direction.setdefault(direction, dict(baseline))[prompt, strength] = cells
    first, _ = split_openings({prompt for prompt, _ in baseline}, seed)
    return {direction: _grid(cells, direction, scorer, first) for direction, cells in sorted(by_direction.items())}


def single_grid(steered: SteeredTables, unsteered: SteeredTables, scorer: str, seed: int = 0) -> ResponseGrid:
    """Return the grid of texts along a single direction.

    Raise CellError `too_few` if there are no texts or too few complete openings, or InputError if the texts are along
    several directions.
    """
    grids = response_grids(steered, unsteered, scorer, seed)
    if not grids:
        raise CellError(Status.TOO_FEW, "there are no steered texts")
    if len(grids) > 1:
        raise InputError(f"the steered texts are of several directions: {', '.join(grids)}; one is needed")
    return next(iter(grids.values()))


def align_openings(grids: Sequence[ResponseGrid]) -> list[ResponseGrid]:
    """Restrict grids to the openings that all grids have. Raise CellError `too_few` below MIN_OPENINGS."""
    shared = set(grids[0].openings).intersection(*(grid.openings for grid in grids[1:]))
    if len(shared) < MIN_OPENINGS:
        raise CellError(
            Status.TOO_FEW, f"only {len(shared)} openings are complete everywhere; {MIN_OPENINGS} are needed"
        )
    positions = [{opening: row for row, opening in enumerate(grid.openings)} for grid in grids]
    return [
        grid.at_openings(np.array([position[opening] for opening in sorted(shared)]))
        for grid, position in zip(grids, positions, strict=True)
    ]


def _cells(tables: SteeredTables, scorer: str) -> dict[tuple[str, str, float], np.ndarray]:
    scores = tables.scores.filter(pc.equal(tables.scores["scorer"], scorer))
    score_of = _by_text(scores, "score")
    nll_of = _by_text(tables.fluency, "mean_nll")
    columns = ("text_id", "direction_key", "prompt_id", "strength", "num_tokens", "repeated_4grams")
    samples: dict[tuple[str, str, float], list[np.ndarray]] = {}
    for row in tables.texts.select(list(columns)).to_pylist():
        text_id = row["text_id"]
        nll = nll_of.get(text_id) if row["num_tokens"] else 0.0  # an empty text weighs nothing in perplexity
        values = (score_of.get(text_id), nll, row["num_tokens"], row["repeated_4grams"] or 0.0)
        key = (row["direction_key"], row["prompt_id"], round(float(row["strength"]), 9))
        cell = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        samples.setdefault(key, []).append(cell)
    return {key: cells[0] if len(cells) == 1 else _mean_cell(np.array(cells)) for key, cells in samples.items()}


def _mean_cell(cells_K4: np.ndarray) -> np.ndarray:
    """Average an opening's samples [score, nll, tokens, repetition]; nll over all their tokens.

    An incomplete sample makes the cell incomplete: a mean over fewer samples would not be paired.
    """
    score, nll, num_tokens, repeated = cells_K4.T
    total = num_tokens.sum()
    return np.array([score.mean(), (nll * num_tokens).sum() / total if total else 0.0, total, repeated.mean()])


def _by_text(table: pa.Table, column: str) -> dict[str, Any]:
    return dict(zip(table["text_id"].to_pylist(), table[column].to_pylist(), strict=True))


def _grid(
    cells: dict[tuple[str, float], np.ndarray], direction: str, scorer: str, first: Collection[str]
) -> ResponseGrid:
    openings = sorted({prompt for prompt, _ in cells})
    strengths = np.array(sorted({strength for _, strength in cells}))
    is_first = np.isin(openings, list(first))
    has_text = np.array([[(prompt, strength) in cells for strength in strengths] for prompt in openings])
    absent = np.full(4, np.nan)
    block = np.array([[cells.get((prompt, s), absent) for s in strengths] for prompt in openings])
    is_complete = np.zeros(len(openings), dtype=bool)
    for half in (is_first, ~is_first):
        columns = has_text[half].any(axis=0)
        is_complete |= half & np.isfinite(block[:, columns]).all(axis=(1, 2))
    complete = np.flatnonzero(is_complete)
    if len(complete) < MIN_OPENINGS:
        raise CellError(
            Status.TOO_FEW,
            f"{len(complete)} of {len(openings)} openings have texts, {scorer} scores and likelihoods at all "
            f"strengths of {direction} that are read; at least {MIN_OPENINGS} are needed",
        )
    block = block[complete]
    complete_openings = tuple(openings[row] for row in complete)
    score, nll, num_tokens, repeated = np.moveaxis(block, -1, 0)
    return ResponseGrid(complete_openings, strengths, score, nll, num_tokens, repeated, is_first[complete])


def mean_scores(grid: ResponseGrid, weights_RP: np.ndarray) -> np.ndarray:
    """Return the mean score over the openings at each strength [R, S]."""
    return weights_RP @ grid.score / weights_RP.sum(axis=1, keepdims=True)


def perplexity_ratio(grid: ResponseGrid, weights_RP: np.ndarray) -> np.ndarray:
    """Return the corpus perplexity under the unsteered model, each strength over unsteered [R, S]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        nll = (weights_RP @ (grid.nll * grid.num_tokens)) / (weights_RP @ grid.num_tokens)
    return np.exp(nll - nll[:, :1])


def fluent_strengths(grid: ResponseGrid, rules: FluencyRules) -> np.ndarray:
    """Return a mask of the strengths that keep the text fluent, bool [S]. Strength 0 always counts as fluent.

    Perplexity alone would admit loops, which are cheap to predict. Therefore, repeated 4-grams are bounded too.
    """
    ones = np.ones((1, len(grid.openings)))
    ratio = perplexity_ratio(grid, ones)[0]
    repeated = grid.repeated.mean(axis=0)
    fluent = (ratio >= rules.min_perplexity_ratio) & (ratio <= rules.max_perplexity_ratio)
    fluent &= repeated <= repeated[0] + rules.max_added_repetition
    fluent[0] = True
    return fluent


def best_column(grid: ResponseGrid, rules: FluencyRules) -> int:
    """Return the column of the fluent strength with the highest mean score. Strength 0 is included.

    If several strengths have this score, the smallest is chosen.

    Raises:
        CellError: `not_fluent` if no strength above 0 is fluent, because it is then unknown whether the direction could
            steer. `too_few` if there is no opening.
    """
    if not grid.openings:
        raise CellError(Status.TOO_FEW, "no opening of the half that the strength is chosen on is complete")
    fluent = fluent_strengths(grid, rules)
    if not fluent[1:].any():
        tried = ", ".join(f"{strength:g}" for strength in grid.strengths[1:])
        raise CellError(Status.NOT_FLUENT, f"the texts are not fluent at any strength ({tried}); try lower ones")
    return int(np.argmax(np.where(fluent, grid.score.mean(axis=0), -np.inf)))
