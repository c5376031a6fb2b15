"""Ranks as a page shows them: standings, families, models, layers, and what few concepts cannot show."""

import json
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from driver.tests.page_reader import heads_of, tables_of, texts_of

from poolbench_driver.pages.boards.rank_parts import rank_parts
from poolbench_driver.pages.boards.ranks import RanksView, build_ranks, letters, rank_text
from poolbench_driver.pages.text import parts_markdown
from poolbench_driver.suites.poolbench.report.charts import rank_diagrams

GOODNESS = {"A1_mean": 0.9, "A2_max": 0.8, "P1_last_token": 0.6, "W1_first_k": 0.5}


CONCEPTS = ("causation", "contrast", "hedging", "imdb_sentiment", "planning", "deference")


d1_ranks = partial(build_ranks, primary="d1.auroc")


def markdown_of(view: RanksView) -> str:
    return "\n\n".join(parts_markdown(list(rank_parts(view))))


def rank_row(strategy: str, concept: str, value: float | None, **columns: Any) -> dict[str, Any]:
    status = {"status": "ok" if value is not None else "collapsed"}
    shared = {"strategy": strategy, "concept": concept, "metric": "d1.auroc", "model": "m", "layer": 1, "params": "{}"}
    return {**shared, "value": value, **status, **columns}


def ranked(metric: str = "d1.auroc") -> dict[str, Any]:
    """The row by which a page knows that a metric was ranked."""
    return rank_row("A1_mean", "", 1.0, metric="rank.mean", params=json.dumps({"of": metric, "board": "all"}))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        rank_row(s, c, good + 0.02 * rng.normal(), model=model, layer=layer)
        for s, good in GOODNESS.items()
        for c in CONCEPTS
        for model, layer in (("m", 1), ("m", 2), ("n", 1))
    ] + [ranked()]


def test_standings_name_the_best_and_compare_the_others_with_it(rows: list[dict[str, Any]]) -> None:
    view = d1_ranks(rows)
    assert [line["strategy"] for line in view.standings] == list(GOODNESS)
    best, *others = view.standings
    assert (best["best"], best["winning_rate"]) == (None, 1)
    assert all(line["best"]["effect"] == 1 and line["best"]["p_holm"] >= line["best"]["p"] for line in others)
    assert len(view.pairs) == 6
    assert [pair["p"] for pair in view.pairs] == sorted(pair["p"] for pair in view.pairs)


def test_families_models_and_layers(rows: list[dict[str, Any]]) -> None:
    view = d1_ranks(rows)
    assert {family.family for family in view.strategy_families} == {"uniform", "position", "window"}
    assert view.strategy_families[0].family == "uniform"
    assert view.concept_families is not None and view.models is not None
    assert "syntactic_discourse (2)" in view.concept_families.parts
    assert view.models.parts == ["m (6)", "n (6)"]
    assert view.models.rows[0][0] == "A1_mean"
    (stability,) = view.layers  # model n has one layer
    assert (stability.first, stability.second, stability.value) == ("m layer 1", "m layer 2", pytest.approx(1))
    assert {line["concept"]: line["tau"] for line in view.concepts} == dict.fromkeys(CONCEPTS, pytest.approx(1))


def test_one_concept_has_a_list_of_values_and_a_line_that_says_why() -> None:
    view = d1_ranks([*(rank_row(s, "causation", v) for s, v in [*GOODNESS.items(), ("T9", None)]), ranked()])
    assert view.pairs == [] and {test["critical_difference"] for test in view.tests} == {None}
    assert view.models is None and view.concept_families is None and view.layers == []
    (part,) = rank_parts(view)
    why, table = markdown_of(view).split("\n\n")[1:]
    assert part.heading == "d1.auroc on causation" and why.startswith("One concept has no board of ranks, because")
    (values,) = tables_of(*part.blocks)
    assert heads_of(values) == ["strategy", "d1.auroc"] and table.startswith("| strategy | d1.auroc |\n")
    assert texts_of(values) == [*([name, f"{value:.3f}"] for name, value in GOODNESS.items()), ["T9", ""]]
    assert rank_diagrams(view.boards) == {}


def test_four_concepts_say_what_they_cannot_show_and_leave_out_tests(rows: list[dict[str, Any]]) -> None:
    view = d1_ranks([line for line in rows if line["concept"] in (*CONCEPTS[:4], "")])
    said = "With 4 concepts no two strategies can be distinguished: a paired test of two strategies cannot give"
    assert view.limit == f"{said} a p below 0.125."
    assert min(pair["p"] for pair in view.pairs) == 0.125, "which the data reach: all concepts agree"
    (part,) = rank_parts(view)
    assert markdown_of(view).count(said) == 1 and part.heading == "Ranks on d1.auroc: 4 concepts"
    _, standings, pairs, *_ = map(heads_of, tables_of(*part.blocks))
    assert standings[:3] == ["strategy", "mean rank", "winning rate"]
    assert not any(head == "tie groups" or head.startswith("p") for head in [*standings, *pairs])
    assert {test["critical_difference"] for test in view.tests} == {None} and rank_diagrams(view.boards) == {}
    assert {line["groups"] for line in view.standings} == {""}


def test_a_correction_that_no_p_can_survive_is_left_out(rows: list[dict[str, Any]]) -> None:
    view = d1_ranks(rows)  # six pairs on six concepts: 6 / 32
    shown = markdown_of(view)
    assert not view.limit and not view.shows_holm and "p (Holm)" not in shown and "critical difference" in shown
    two = d1_ranks([line for line in rows if line["strategy"] in ("A1_mean", "W1_first_k")])
    assert two.shows_holm and "| effect | p | p (Holm) | p (BH) |" in markdown_of(two)


def test_nothing_ranked_leaves_an_empty_view() -> None:
    assert d1_ranks([]).boards == {}
    assert d1_ranks([rank_row("A1_mean", "causation", 0.9), ranked()]).standings == []


def test_other_metrics_have_boards_but_no_standings(rows: list[dict[str, Any]]) -> None:
    other = [{**line, "metric": "d2.scp"} for line in rows if line["metric"] == "d1.auroc"]
    view = d1_ranks([*other, ranked("d2.scp")])
    assert list(view.boards) == ["d2.scp"] and view.standings == []
    assert [test["board"] for test in view.tests] == ["all", "complete"]


@pytest.mark.parametrize("metric", ["d1.auroc", "d2.best_gain"])
def test_columns_of_differences_are_called_by_the_metric(rows: list[dict[str, Any]], metric: str) -> None:
    lines = [{**line, "metric": metric} for line in rows if line["metric"] == "d1.auroc"]
    (part,) = rank_parts(build_ranks([*lines, ranked(metric)], metric))
    _, standings, pairs, *_ = map(heads_of, tables_of(*part.blocks))
    assert f"{metric} behind best" in standings and f"{metric} difference" in pairs
    assert not any("AUROC" in head for head in [*standings, *pairs])


def test_letters_and_diagram_show_the_same_groups(rows: list[dict[str, Any]]) -> None:
    view = d1_ranks(rows)
    board = view.boards["d1.auroc"]
    shared = letters(board)
    assert shared["A1_mean"] != shared["W1_first_k"]
    for group, letter in zip(board.summary["tie_groups"], "abcd", strict=False):
        assert all(letter in shared[name] for name in group)
    svg = rank_diagrams(view.boards)["d1.auroc"].svg
    assert svg.startswith("<svg") and all(re.search(rf"{name} \d\.\d\d", svg) for name in GOODNESS)
    assert f"critical difference {board.summary['critical_difference']:.2f}" in svg
    assert svg == rank_diagrams(view.boards)["d1.auroc"].svg


def test_rank_text() -> None:
    assert rank_text(2.5, (1.0, 3.04)) == "2.50 [1.0, 3.0]"
    assert rank_text(2.5, (None, None)) == rank_text(2.5, None) == "2.50"
    assert rank_text(None, None) == ""
