"""Boards of families, layers and models, and how boards agree."""

import numpy as np
import pytest

from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.pages.boards.ranks import (
    block_agreement,
    boards_by,
    family_ranks,
    rank_agreements,
    winning_rates,
)

FAMILIES = {"c0": "register", "c1": "register", "c2": "lexical"}


def cells_of(values, **columns):
    """Cells from {strategy: [value a concept]}."""
    return [
        {"strategy": s, "concept": f"c{k}", "metric": "d1.auroc", "value": v, "status": "ok", **columns}
        for s, row in values.items()
        for k, v in enumerate(row)
    ]


def ranks_of(board):
    return dict(zip(board.entrants, (m.value for m in board.measures), strict=True))


def test_a_board_for_each_concept_family():
    cells = cells_of({"A1": [0.9, 0.9, 0.1], "P1": [0.5, 0.5, 0.5]})
    boards = boards_by(cells, "d1.auroc", lambda row: FAMILIES[row["concept"]])
    assert list(boards) == ["lexical", "register"]
    assert ranks_of(boards["register"]) == {"A1": 1, "P1": 2}
    assert ranks_of(boards["lexical"]) == {"P1": 1, "A1": 2}
    assert boards["lexical"].measures[0].ci_low is None  # one concept


def test_parts_without_a_board_are_left_out():
    cells = cells_of({"A1": [0.9], "P1": [0.5]}, model="m")
    assert boards_by(cells, "d1.auroc", lambda row: None) == {}
    assert boards_by(cells[:1], "d1.auroc", lambda row: row["model"]) == {}


def test_family_ranks_by_hand():
    # ranks: A1 1 2, A2 2 1, P1 3 3
    board = rank_board(cells_of({"A1": [0.9, 0.8], "A2": [0.8, 0.9], "P1": [0.1, 0.2]}), "d1.auroc")
    mean, window = family_ranks(board, {"A1": "mean", "A2": "mean", "P1": "window"})
    assert (mean.family, mean.mean_rank, mean.strategies, mean.num_blocks) == ("mean", 1.5, ("A1", "A2"), 2)
    assert mean.interval == (1.5, 1.5)
    assert (window.family, window.mean_rank, window.interval) == ("window", 3, (3.0, 3.0))


def test_a_family_without_a_rank_comes_last_and_is_null():
    cells = cells_of({"A1": [0.9, 0.8], "P1": [0.1, 0.2]})
    cells += [{**cells[0], "strategy": "X9", "value": None, "status": "failed"}]
    found = family_ranks(rank_board(cells, "d1.auroc"), {"A1": "mean", "P1": "window", "X9": "learned"})
    assert [(rank.family, rank.mean_rank, rank.num_blocks) for rank in found] == [
        ("mean", 1, 2), ("window", 2, 2), ("learned", None, 0),
    ]  # fmt: skip


def test_a_strategy_without_family_stands_for_itself():
    board = rank_board(cells_of({"A1": [0.9], "X9": [0.5]}), "d1.auroc")
    assert [rank.family for rank in family_ranks(board, {"A1": "mean"})] == ["mean", "X9"]


def boards_with(first, second):
    cells = cells_of(first, layer=1) + cells_of(second, layer=2)
    return boards_by(cells, "d1.auroc", lambda row: str(row["layer"]))


def test_layers_that_agree_and_layers_that_reverse():
    values = {name: [k / 10] * 4 for k, name in enumerate("abcde")}
    (same,) = rank_agreements(boards_with(values, values))
    assert (same.value, same.interval, same.status) == (pytest.approx(1), pytest.approx((1, 1)), "ok")
    reverse = {name: [-v for v in row] for name, row in values.items()}
    (opposite,) = rank_agreements(boards_with(values, reverse))
    assert opposite.value == pytest.approx(-1)


def test_agreement_has_an_interval_that_holds_it():
    rng = np.random.default_rng(0)
    truth = np.arange(8) / 8
    first, second = ({f"s{k}": truth[k] + 0.3 * rng.normal(size=20) for k in range(8)} for _ in range(2))
    (found,) = rank_agreements(boards_with(first, second))
    assert found.interval[0] <= found.value <= found.interval[1]
    assert 0 < found.value < 1


def test_agreement_that_cannot_be_had_says_why():
    two = {"a": [0.1], "b": [0.2]}
    assert rank_agreements(boards_with(two, two))[0].status == "too_few"
    tied = {name: [0.5] for name in "abcd"}
    assert rank_agreements(boards_with(tied, tied))[0].status == "collapsed"
    (single,) = rank_agreements(
        boards_with({name: [k] for k, name in enumerate("abcd")}, {n: [ord(n)] for n in "abcd"})
    )
    assert (single.value, single.interval) == (pytest.approx(1), None)


def test_winning_rates_and_agreement_of_concepts():
    board = rank_board(cells_of({"A1": [0.9, 0.9, 0.1], "P1": [0.5, 0.5, 0.5], "W1": [0.4, 0.4, 0.9]}), "d1.auroc")
    assert winning_rates(board) == pytest.approx({"A1": 4 / 6, "P1": 3 / 6, "W1": 2 / 6})
    assert block_agreement(board) == pytest.approx({"c0": 1, "c1": 1, "c2": -1})
