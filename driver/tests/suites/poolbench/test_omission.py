"""What has no scores, counted by hand: four openings, of which two choose a strength, at three strengths."""

from collections.abc import Callable
from typing import Any

import pytest

from poolbench.contracts import Row
from poolbench.statistics.response import split_openings
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.verification import State
from poolbench_driver.suites.poolbench.omission import Count, check_coverage, openings_of_cells, passages_of_cells

OPENINGS = [f"neutral-54-{number:02d}" for number in range(4)]
FIRST, SECOND = split_openings(OPENINGS, 0)
BUDGET = {
    "num_openings": 4,
    "strengths": [0.1, 0.2, 0.4],
    "null_strengths": [0.1],
    "reference_strength": 0.1,
    "num_nulls": 20,
}
SETTINGS: dict[str, Any] = {
    "preset": "demo", "concepts": ["contrast"], "strategies": ["A1_mean"], "layers": [2], "steering_layer": 2,
    "budget": BUDGET, "metrics": ["d1", "d2"],
}  # fmt: skip


def texts_of(opening: str, strengths: list[float], direction: int = 0) -> list[Row]:
    """Rows of a concept's own scorer, of texts that are not empty."""
    row = {"prompt_id": opening, "scorer": "contrast", "score": 0.5, "mean_nll": 2.0, "num_tokens": 20}
    return [{**row, "strength": strength, "direction": direction} for strength in strengths]


def counted(change: Callable[[dict[Any, list[Row]]], object] = lambda texts: None) -> dict[str, tuple[int, int]]:
    """Openings with all their texts, of how many, by cell; the second half is read where .4 was best."""
    config = load_run_config(None, SETTINGS)
    assert isinstance(config, ConceptsConfig)
    lazy = {opening: [0.1, 0.2, 0.4] if opening in FIRST else [0.1, 0.4] for opening in OPENINGS}
    texts = {
        (None, "unsteered"): [row for opening in OPENINGS for row in texts_of(opening, [0.0])],
        ("contrast", "A1_mean"): [row for opening in OPENINGS for row in texts_of(opening, lazy[opening])],
        ("contrast", "nulls"): [
            row for number in range(20) for opening in OPENINGS for row in texts_of(opening, [0.1], number)
        ],
    }
    change(texts)
    return {
        count.cell.removeprefix("openings of "): count[1:3] for count in openings_of_cells(config, ["contrast"], texts)
    }


def without(concept: str | None, name: str, **of: Any) -> Callable[[dict[Any, list[Row]]], None]:
    """Leave out the rows of a name that have one of these values in each column."""

    def change(texts: dict[Any, list[Row]]) -> None:
        rows = texts[concept, name]
        texts[concept, name] = [row for row in rows if not all(row[column] in of[column] for column in of)]

    return change


STEERED = ("contrast", "A1_mean")


@pytest.mark.parametrize(
    ("change", "cell", "num_complete"),
    [
        (without(*STEERED, prompt_id=FIRST[:1]), "contrast, A1_mean", 3),
        (without(*STEERED, prompt_id=FIRST[:1], strength=[0.2]), "contrast, A1_mean", 3),
        (without(*STEERED, prompt_id=SECOND[:1], strength=[0.4]), "contrast, A1_mean", 3),
        (without(*STEERED, prompt_id=SECOND, strength=[0.1]), "contrast, A1_mean", 2),
        (without(*STEERED, strength=[0.2]), "contrast, A1_mean", 2),
        (without("contrast", "nulls", direction=[1]), "contrast, nulls", 76),
        (without(None, "unsteered", prompt_id=SECOND[:1]), "unsteered", 3),
        (lambda texts: texts[STEERED][0].update(mean_nll=None), "contrast, A1_mean", 3),
        (lambda texts: texts[STEERED][0].update(mean_nll=None, num_tokens=0), "contrast, A1_mean", 4),
        (lambda texts: texts[STEERED].append(texts[STEERED][0]), "contrast, A1_mean", 3),
    ],
)
def test_openings_count_that_have_all_that_is_read(change: Any, cell: str, num_complete: int) -> None:
    whole = {"unsteered": (4, 4), "contrast, A1_mean": (4, 4), "contrast, nulls": (80, 80)}
    assert counted() == whole
    assert counted(change) == {**whole, cell: (num_complete, whole[cell][1])}


def test_scores_by_a_scorer_without_a_gate_give_nothing() -> None:
    config = load_run_config(None, SETTINGS)
    assert isinstance(config, ConceptsConfig)
    texts = {STEERED: texts_of(OPENINGS[0], [0.1])}
    assert [count.is_blank for count in openings_of_cells(config, [], texts)] == [True, True, True]


def test_passages_count_on_each_split_that_has_rows() -> None:
    at = {"concept": "contrast", "strategy": "A1_mean", "layer": 2}
    rows = [
        {**at, "metric": "d1.auroc"},
        {**at, "strategy": "S0", "metric": "d1.auroc"},
        {**at, "metric": "d1.auroc_test"},
    ]
    scored = {("contrast", "train", "A1_mean", 2): ("abc", "abc"), ("contrast", "test", "A1_mean", 2): ("a", "a")}
    passages = {("contrast", "train"): "abcd", ("contrast", "test"): "ab"}
    assert [tuple(count) for count in passages_of_cells(rows, scored, passages)] == [
        ("train passages of contrast, A1_mean, layer 2", 3, 4, False),
        ("test passages of contrast, A1_mean, layer 2", 1, 2, False),
        ("train passages of contrast, S0, layer 2", 0, 4, True),
        ("test passages of contrast, S0, layer 2", 0, 2, True),
    ]


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ([Count("a", 10, 10, False)], State.PASSED),
        ([Count("a", 9, 10, False)], State.UNCHECKED),
        ([Count("a", 8, 10, False)], State.FAILED),
        ([Count("a", 11, 10, False)], State.FAILED),
        ([Count("a", 0, 10, True)], State.UNCHECKED),
        ([Count("a", 0, 10, False)], State.FAILED),
    ],
)
def test_a_tenth_may_be_lacking_and_is_shown(counts: list[Count], state: State) -> None:
    assert check_coverage(counts).state == state
