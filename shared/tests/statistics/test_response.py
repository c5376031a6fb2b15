"""Response grids and their figures by hand: which openings count, samples of an opening, fluency, the best strength."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.errors import CellError, InputError
from poolbench.statistics.response import (
    FluencyRules,
    ResponseGrid,
    SteeredTables,
    align_openings,
    best_column,
    fluent_strengths,
    mean_scores,
    perplexity_ratio,
    response_grids,
    split_openings,
)

OPENINGS = ("a", "b", "c", "d", "e", "f")
#: Of one sample: score, mean negative log-likelihood, tokens, share of repeated 4-grams.
SAMPLE = (0.25, 2.0, 10, 0.0)


def tables(samples: dict[tuple[str, float], list[tuple[Any, ...]]]) -> SteeredTables:
    """Texts of one direction, by opening and strength; None in place of a figure leaves its row out."""
    texts, scores, fluency = [], [], []
    for (opening, strength), drawn in samples.items():
        for number, (score, nll, num_tokens, repeated) in enumerate(drawn):
            text_id = f"{opening}/{strength}/{number}"
            texts.append(
                {
                    "text_id": text_id, "direction_key": "k", "prompt_id": opening, "strength": strength,
                    "num_tokens": num_tokens, "repeated_4grams": repeated,
                }
            )  # fmt: skip
            if score is not None:
                scores.append({"text_id": text_id, "scorer": "s", "score": score})
                scores.append({"text_id": text_id, "scorer": "of another concept", "score": 0.9})
            if nll is not None:
                fluency.append({"text_id": text_id, "mean_nll": nll})
    return SteeredTables(*(pa.Table.from_pylist(rows) for rows in (texts, scores, fluency)))


def grid_of(changed: dict[tuple[str, float], list[tuple[Any, ...]]]) -> ResponseGrid:
    """The grid of six openings at strengths 0, .5 and 1, with some cells changed."""
    cells = {(opening, strength): [SAMPLE] for opening in OPENINGS for strength in (0.0, 0.5, 1.0)} | changed
    unsteered = {place: drawn for place, drawn in cells.items() if place[1] == 0}
    steered = {place: drawn for place, drawn in cells.items() if place[1] != 0 and drawn}
    return response_grids(tables(steered), tables(unsteered), "s")["k"]


def test_samples_of_an_opening_are_averaged_and_perplexity_by_token() -> None:
    grid = grid_of({("b", 0.5): [(0.2, 1.0, 30, 0.25), (0.6, 3.0, 10, 0.75)]})
    assert grid.openings == OPENINGS and grid.strengths.tolist() == [0.0, 0.5, 1.0]
    assert [grid.column(strength) for strength in (0.0, 0.5, 1.0)] == [0, 1, 2]
    with pytest.raises(InputError, match=r"no texts at strength 0.25; the curve has 0, 0.5, 1: add it"):
        grid.column(0.25)
    assert grid.at_strengths((0.25, 1.0)).strengths.tolist() == [0.0, 1.0]
    cell = [figure[1, 1] for figure in (grid.score, grid.nll, grid.num_tokens, grid.repeated)]
    assert cell == pytest.approx([0.4, (30 * 1.0 + 10 * 3.0) / 40, 40, 0.5])
    np.testing.assert_allclose(mean_scores(grid, np.array([[1] * 6, [0, 3, 1, 0, 0, 0]]))[:, 1], [1.65 / 6, 1.45 / 4])
    # In corpus perplexity the second opening, with 40 of 90 tokens, weighs most.
    nll = (50 * 2.0 + 40 * 1.5) / 90
    assert perplexity_ratio(grid, np.ones((1, 6)))[0] == pytest.approx([1, math.exp(nll - 2), 1])


@pytest.mark.parametrize("absent", [(None, 2.0, 10, 0.0), (0.25, None, 10, 0.0)])
@pytest.mark.parametrize("opening", OPENINGS)
def test_an_opening_without_a_figure_is_left_out_of_all_strengths(opening: str, absent: tuple[Any, ...]) -> None:
    grid = grid_of({(opening, 1.0): [SAMPLE, absent]})
    assert grid.openings == tuple(other for other in OPENINGS if other != opening)
    assert np.isfinite(grid.score).all()


def test_an_empty_text_has_a_score_and_weighs_nothing_in_perplexity() -> None:
    grid = grid_of({("a", 0.5): [(0.5, None, 0, None)]})
    assert grid.openings == OPENINGS
    assert (grid.score[0, 1], grid.num_tokens[0, 1], grid.repeated[0, 1]) == (0.5, 0, 0)
    assert perplexity_ratio(grid, np.ones((1, 6)))[0, 1] == 1


def test_a_strength_may_be_read_on_one_half_alone() -> None:
    first, second = split_openings(OPENINGS, 0)
    assert sorted(first + second) == list(OPENINGS) and len(first) == 3
    grid = grid_of({(opening, 1.0): [] for opening in first})
    assert grid.openings == OPENINGS
    assert np.isnan(grid.score[:, 2]).tolist() == [opening in first for opening in OPENINGS]
    choosing, reading = grid.halves
    assert [grid.openings[row] for row in choosing] == first and [grid.openings[row] for row in reading] == second


def test_too_few_openings_are_no_curve() -> None:
    with pytest.raises(CellError, match="3 of 6 openings have texts, s scores and likelihoods") as caught:
        grid_of({(opening, 0.5): [(None, 2.0, 10, 0.0)] for opening in "abc"})
    assert caught.value.status == "too_few"
    grids = [grid_of({(opening, 0.5): [(None, 2.0, 10, 0.0)]}) for opening in "abc"]
    assert [grid.openings for grid in align_openings(grids[:2])] == [("c", "d", "e", "f")] * 2
    with pytest.raises(CellError, match="only 3 openings are complete everywhere; 4 are needed"):
        align_openings(grids)


def test_the_best_strength_is_the_fluent_one_with_the_highest_score() -> None:
    def cells(strength: float, score: float, nll: float, repeated: float) -> dict[tuple[str, float], Any]:
        return {(opening, strength): [(score, nll, 10, repeated)] for opening in OPENINGS}

    rules = FluencyRules()
    fluent = {1.0: math.log(1.49), 2.0: math.log(0.68), 3.0: 0.0}
    broken = {4.0: math.log(1.51), 5.0: math.log(0.66)}
    changed: dict[tuple[str, float], Any] = {}
    for strength, change in (fluent | broken).items():
        changed |= cells(strength, strength / 10, 2 + change, 0.0999)
    changed |= cells(6.0, 0.9, 2.0, 0.1001)  # a loop
    grid = grid_of(changed)
    assert grid.strengths[fluent_strengths(grid, rules)].tolist() == [0, 0.5, 1, 2, 3]
    assert grid.strengths[best_column(grid, rules)] == 3
    worse = grid_of(cells(0.5, 0.1, 2.0, 0.0) | cells(1.0, 0.2, 2.0, 0.0))
    assert best_column(worse, rules) == 0
    with pytest.raises(CellError, match="no opening of the half that the strength is chosen on") as caught:
        best_column(grid.at_openings(np.array([], dtype=int)), rules)
    assert caught.value.status == "too_few"
    with pytest.raises(CellError, match=r"not fluent at any strength \(0.5, 1\)"):
        best_column(grid_of(cells(0.5, 0.9, 9.0, 0.0) | cells(1.0, 0.9, 9.0, 0.0)), rules)
