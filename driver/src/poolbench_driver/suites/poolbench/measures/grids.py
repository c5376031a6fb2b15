"""Arrange steered texts as arrays of openings by strengths: one grid per direction and scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.errors import CellError, InputError
from poolbench.statuses import Status

#: Fewest openings a D2 or D3 figure is computed from: two to choose a strength on, two to read the gain on.
MIN_OPENINGS = 4


class SteeredTables(NamedTuple):
    """Tables TEXTS, SCORES and FLUENCY of some directions."""

    texts: pa.Table
    scores: pa.Table
    fluency: pa.Table


@dataclass(frozen=True)
class ResponseGrid:
    """Scores and fluency of one direction under one scorer; column 0 is unsteered."""

    openings: tuple[str, ...]  # prompt ids, length P
    strengths: np.ndarray  # ascending, in the run's unit, length S; `strengths[0] == 0`
    score: np.ndarray  # P(concept) of each text, averaged over an opening's samples [P, S]
    nll: np.ndarray  # mean negative log-likelihood of the generated tokens under the unsteered model, nats [P, S]
    num_tokens: np.ndarray  # generated tokens of all samples together [P, S]
    repeated: np.ndarray  # share of repeated 4-grams, mean over the samples [P, S]

    def at_strengths(self, strengths: Sequence[float]) -> ResponseGrid:
        """Return the unsteered column and those of `strengths` that exist."""
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
        )


def response_grids(steered: SteeredTables, unsteered: SteeredTables, scorer: str) -> dict[str, ResponseGrid]:
    """Return one grid per `direction_key` of the steered texts, with the unsteered texts as strength 0.

    Openings that lack a text, a score or a likelihood at some strength are left out, because the figures are paired.
    Raise CellError `too_few` if fewer than MIN_OPENINGS openings are complete.
    """
    baseline = {(prompt, 0.0): cells for (_, prompt, _), cells in _cells(unsteered, scorer).items()}
    by_direction: dict[str, dict[tuple[str, float], np.ndarray]] = {}
    for (direction, prompt, strength), cells in _cells(steered, scorer).items():
        if strength != 0:
            by_direction.setdefault(direction, dict(baseline))[prompt, strength] = cells
    return {direction: _grid(cells, direction, scorer) for direction, cells in sorted(by_direction.items())}


def single_grid(steered: SteeredTables, unsteered: SteeredTables, scorer: str) -> ResponseGrid:
    """Return the grid of texts along one direction.

    Raise CellError `too_few` without texts or complete openings, InputError for texts along several directions.
    """
    grids = response_grids(steered, unsteered, scorer)
    if not grids:
        raise CellError(Status.TOO_FEW, "there are no steered texts")
    if len(grids) > 1:
        raise InputError(f"the steered texts are of several directions: {', '.join(grids)}; one is needed")
    return next(iter(grids.values()))


def align_openings(grids: Sequence[ResponseGrid]) -> list[ResponseGrid]:
    """Restrict grids to the openings that all of them have. Raise CellError `too_few` below MIN_OPENINGS."""
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


def _grid(cells: dict[tuple[str, float], np.ndarray], direction: str, scorer: str) -> ResponseGrid:
    openings = sorted({prompt for prompt, _ in cells})
    strengths = np.array(sorted({strength for _, strength in cells}))
    absent = np.full(4, np.nan)
    block = np.array([[cells.get((prompt, s), absent) for s in strengths] for prompt in openings])
    complete = np.flatnonzero(np.isfinite(block).all(axis=(1, 2)))
    if len(complete) < MIN_OPENINGS:
        raise CellError(
            Status.TOO_FEW,
            f"{len(complete)} of {len(openings)} openings have texts, {scorer} scores and likelihoods at all "
            f"{len(strengths)} strengths of {direction}; at least {MIN_OPENINGS} are needed",
        )
    block = block[complete]
    complete_openings = tuple(openings[row] for row in complete)
    return ResponseGrid(complete_openings, strengths, block[..., 0], block[..., 1], block[..., 2], block[..., 3])
