"""Answer, D1 in detail, and ranks on the page, from rows made by hand and from a finished run."""

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.page_reader import heads_of, part_of, rendered, tables_of, texts_of

from poolbench.contracts.results import result_table
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.page import Prose
from poolbench_driver.pages.boards.rank_parts import rank_parts
from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.pages.boards.ranks import RanksView, build_ranks, letters, rank_text
from poolbench_driver.pages.text import ending_of, parts_markdown
from poolbench_driver.records import RunFolder
from poolbench_driver.report import page_of
from poolbench_driver.suites.poolbench.report.answer import (
    QUESTIONS,
    Best,
    answers,
    best_of,
    headline,
    leaders,
    problems,
)
from poolbench_driver.suites.poolbench.report.board import build_d1, build_published
from poolbench_driver.suites.poolbench.report.charts import rank_diagrams
from poolbench_driver.suites.poolbench.report.checks import concept_checks

ORDER = ("A1_mean", "L5_keyword", "P1_last_token", "S2_gradient")


def row(strategy: str | None, metric: str, value: float | None, **columns: Any) -> dict[str, Any]:
    status = "ok" if value is not None else "collapsed"
    shared = {"concept": "contrast", "layer": 2, "params": "{}", "status": status}
    return {**shared, "strategy": strategy, "metric": metric, "value": value, **columns}


def by_scp(strategy: str, value: float, scp: str) -> dict[str, Any]:
    return row(strategy, "d3.ld", value, params=json.dumps({"scp": scp}))


def test_d1_in_detail_is_the_mean_over_concepts_and_layers() -> None:
    rows = [
        row("A1_mean", "d1.auroc", 0.9),
        row("A1_mean", "d1.auroc", 0.8, layer=3),
        row("A1_mean", "d1.auroc", None, concept="hedging"),
        row("A1_mean", "d1.seed_spread", 0.0012),
        row("A1_mean", "d1.seed_spread", 0.0004, layer=3),
        row("A1_mean", "d1.auroc_nested", 0.95, layer=None),
        row("A1_mean", "d1.auroc_permuted", 0.5),
        row(None, "d1.alarms", 0.0),
    ]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert heads_of(table) == ["strategy", "d1.auroc", "d1.auroc_nested", "d1.seed_spread"]
    assert texts_of(table) == [["A1_mean", "0.850 (2/3)", "0.950", "0.0008"]]
    assert table.lines[0].cells[1].value == pytest.approx(0.85)


def test_directions_follow_in_the_order_of_the_docs_and_say_where_they_are() -> None:
    names = ("LDA", "C1_centred", "own", "C5", "C1")
    rows = [row("A1_mean", "d1.auroc", 0.9, layer=layer) for layer in (2, 3)]
    rows += [
        row("A1_mean", f"d1.direction.{name}", 0.7, layer=layer)
        for name in names
        for layer in (2, 3)
        if (name, layer) != ("C5", 3)
    ]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert heads_of(table) == ["strategy", "d1.auroc", "C1", "C5", "LDA", "C1_centred", "own"]
    assert table.note == "C5: layer 2 only"


def test_a_cell_that_failed_as_a_whole_says_why_in_every_column() -> None:
    rows = [row("A1_mean", "d1.auroc", 0.9), row("A1_mean", "d1.direction.C1", 0.7)]
    rows += [row("S2_gradient", "d1.auroc", None, status="not_implemented"), row("L5_keyword", "d1.auroc", 0.6)]
    table = build_d1(rows, ORDER)
    assert table is not None
    assert texts_of(table) == [
        ["A1_mean", "0.900", "0.700"],
        ["L5_keyword", "0.600", ""],
        ["S2_gradient", "not_implemented", "not_implemented"],
    ]
    assert build_d1([row("A1_mean", "d2.scp", 0.9)], ORDER) is None


def test_published_means_stand_beside_the_corrected_in_their_own_order() -> None:
    ours = [row(name, "d1.auroc", 0.9 - 0.1 * number) for number, name in enumerate(ORDER)]
    ours += [row("A1_mean", "d3.ld", 0.5), row("A1_mean", "d3.ld", None, concept="hedging", status="no_effect")]
    theirs = [
        row("A1_mean", "d1.auroc", 0.4),
        row("L5_keyword", "d1.auroc", 0.6),
        row("P1_last_token", "d1.auroc", 0.5),
    ]
    theirs += [row("S2_gradient", "d1.auroc", None, status="not_implemented"), row("A1_mean", "d2.scp", 1.0)]
    theirs += [by_scp("A1_mean", 30.0, "d2.scp_1"), by_scp("A1_mean", 0.25, "d2.scp")]
    table = build_published(theirs, ours, ORDER)
    assert table is not None
    assert [(column.group, column.head) for column in table.columns[1:]] == [
        ("d1.auroc", "published"),
        ("d1.auroc", "corrected"),
        ("d3.ld", "published (d2.scp)"),  # d2.scp: no corrected rows
        ("d3.ld", "published (d2.scp_1)"),
        ("d3.ld", "corrected"),
    ]
    cells = {name: texts for name, *texts in texts_of(table)}
    assert list(cells) == ["L5_keyword", "P1_last_token", "A1_mean", "S2_gradient"]
    assert cells["A1_mean"] == ["0.400", "0.900", "0.250", "30.000", "0.500 (1/2)"]
    assert cells["S2_gradient"] == ["not_implemented", "0.600", "", "", ""]
    assert build_published(None, ours, ORDER) is build_published([], ours, ORDER) is None


@pytest.fixture(scope="module")
def finished(steered_in: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, pa.Table]]:
    made = steered_in(tmp_path_factory.mktemp("store"), strategies=("A1_mean", "L5_keyword"), metrics=["d1"])
    made.probes(made.plan.probes.concepts["contrast"])
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), made.plan.scope.config)
    for name, table in tables.items():
        folder.write_table(name, table)
    folder.write_failures([])
    return folder, tables


def test_an_old_run_has_a_page_without_the_published_part(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    assert '<details id="d1"><summary>D1 in detail' in html and "## D1 in detail" in markdown
    assert any(problem.text.startswith("contrast: ") for problem in page.problems)
    (nulls,) = tables_of(*part_of(page, "nulls").blocks)
    assert texts_of(nulls)[0][:3] == ["d1", "failed", "2"] and texts_of(nulls)[0][3].startswith("artifact ")
    assert "published" not in [part.anchor for part in page.parts] and "## Published" not in markdown


def test_a_run_of_d1_shows_nothing_of_d2_and_d3(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    assert heads_of(page.board)[:2] == ["strategy", "d1.auroc"]
    html, markdown = rendered(page)
    for text in (html[html.index("<body>") :], markdown, ending_of(page)):
        assert not re.findall(r"\b[Dd][23]\b|\bgain|scorer|curve", text, re.I)


def test_published_rows_are_shown_and_never_ranked(finished: tuple[RunFolder, dict[str, pa.Table]]) -> None:
    folder, tables = finished
    before = page_of(folder)
    rows = [r for r in tables["results"].to_pylist() if r["metric"] == "d1.auroc"]
    figures = {"A1_mean": 0.4, "L5_keyword": 0.6}
    rows = [{**r, "protocol": "published", "value": figures[r["strategy"]]} for r in rows]
    folder.write_table("published", result_table(rows))
    try:
        page = page_of(folder)
    finally:
        folder.file("published.parquet").unlink()
    part = part_of(page, "published")
    assert "never ranked" in part.heading and "Published D2" not in part.note
    (table,) = tables_of(*part.blocks)
    # By the published figures, not by ours.
    assert texts_of(table) == [["L5_keyword", "0.600", "0.800"], ["A1_mean", "0.400", "0.900"]]
    assert replace(page, parts=[other for other in page.parts if other != part]) == before  # nothing else changes


def test_one_concept_has_no_column_of_ranks(finished: tuple[RunFolder, Any]) -> None:
    page = page_of(finished[0])
    html, markdown = rendered(page)
    why = "One concept has no board of ranks, because strategies are compared over concepts."
    for text in (html[html.index("<h1>") :], markdown, ending_of(page)):
        assert not any(word in text for word in ("mean rank", "Nemenyi", "p (Holm)", "critical difference"))
        assert "One concept is too few to tell strategies apart." in text
    assert markdown.count(why) == html.count(why) == 1
    assert ending_of(page).splitlines()[3].split()[:2] == ["strategy", "d1.auroc"]


@pytest.mark.parametrize(("num_concepts", "num_p"), [(4, 0), (6, 2), (9, 3)])
def test_a_page_has_the_columns_that_so_many_concepts_can_fill(num_concepts: int, num_p: int) -> None:
    shared = {"metric": "d1.auroc", "model": "m", "layer": 1, "params": "{}", "status": "ok"}
    rows = [
        {**shared, "strategy": name, "concept": f"c{n}", "value": 0.9 - 0.1 * place - 0.01 * n}
        for n in range(num_concepts)
        for place, name in enumerate(("A1_mean", "A2_max", "L5_keyword"))
    ]
    of = json.dumps({"of": "d1.auroc", "board": "all"})
    rows.append({**shared, "strategy": "A1_mean", "concept": "", "value": 1.0, "metric": "rank.mean", "params": of})
    (part,) = rank_parts(build_ranks(rows, "d1.auroc"))
    tables = tables_of(*part.blocks)
    for table in tables:
        assert {len(line.cells) for line in table.lines} == {len(table.columns)}
    tests, standings, pairs, *_ = (len(table.columns) for table in tables)
    more = num_p + (num_p > 0)  # tie groups, and Nemenyi's p of a pair
    assert (tests, standings, pairs) == (8, 6 + more, 6 + more)
    limits = [block.text for block in part.blocks if isinstance(block, Prose)]
    assert any("With 4 concepts no two strategies can be distinguished" in text for text in limits) == (num_p == 0)
    assert ("after Holm" in part.note) == (num_p == 2) and ("p (Holm)" in heads_of(tables[1])) == (num_p == 3)


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


def test_one_model_and_one_family_need_no_table_of_their_own() -> None:
    view = d1_ranks([*(rank_row(s, "causation", v) for s, v in GOODNESS.items()), ranked()])
    assert view.models is None and view.concept_families is None and view.layers == []


def test_one_concept_has_a_list_of_values_and_a_line_that_says_why() -> None:
    view = d1_ranks([*(rank_row(s, "causation", v) for s, v in [*GOODNESS.items(), ("T9", None)]), ranked()])
    assert view.pairs == [] and {test["critical_difference"] for test in view.tests} == {None}
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


def test_no_diagram_without_a_critical_difference() -> None:
    holes = [
        rank_row("A1_mean", "causation", 0.9),
        rank_row("A2_max", "causation", 0.8),
        rank_row("A2_max", "contrast", 0.7),
    ]
    holes += [rank_row("P1_last_token", "contrast", 0.6), ranked()]
    view = d1_ranks(holes)
    assert view.boards["d1.auroc"].summary["num_blocks"] == 0
    assert rank_diagrams(view.boards) == {}


def test_rank_text() -> None:
    assert rank_text(2.5, (1.0, 3.04)) == "2.50 [1.0, 3.0]"
    assert rank_text(2.5, (None, None)) == rank_text(2.5, None) == "2.50"
    assert rank_text(None, None) == ""


STRATEGIES = ("A1_mean", "A2_max", "P1_last_token", "W2_last_k", "L3_entity")
SIX_CONCEPTS = ("causation", "contrast", "hedging", "narrative", "planning", "deference")


def cells(metric: str, order: tuple[str, ...], step: float = 0.05) -> list[dict[str, Any]]:
    """Rows in which the strategies have this order, best first, for every concept."""
    return [
        {"concept": concept, "strategy": name, "metric": metric, "value": 0.9 - step * place - 0.01 * number}
        | {"status": "ok", "layer": 1, "model": "m", "scorer": None, "params": "{}"}
        for number, concept in enumerate(SIX_CONCEPTS)
        for place, name in enumerate(order)
    ]


def best(rows: list[dict[str, Any]]) -> dict[str, Best | None]:
    """The best strategies of boards made from the rows."""
    boards = {metric: board for metric in QUESTIONS if (board := rank_board(rows, metric)) is not None}
    return best_of(boards, {row["metric"] for row in rows})


def test_the_winner_comes_with_what_it_cannot_be_told_from() -> None:
    probing, steering = answers(best([*cells("d1.auroc", STRATEGIES), *cells("d2.best_gain", STRATEGIES[::-1])]))
    assert probing.startswith("For probing, A1_mean has the best mean rank: 1.00 ")
    assert " of 5 over 6 concepts and a mean d1.auroc of 0.875. " in probing
    # Nemenyi's critical difference of 5 strategies on 6 blocks: 2.728 sqrt(5 x 6 / (6 x 6)) = 2.5.
    assert probing.endswith("tell it from A2_max, P1_last_token; it is better than the others (Nemenyi's test, 5 %).")
    assert steering.startswith("For steering, L3_entity has the best mean rank: 1.00 ")


def test_equal_strategies_have_no_winner() -> None:
    (said,) = answers(best(cells("d1.auroc", STRATEGIES, step=0.0)))
    assert said == (
        "For probing, five strategies are equal at the top: A1_mean, A2_max, L3_entity and 2 more, with a mean "
        "d1.auroc of 0.875 on 6 concepts."
    )


def test_strategies_with_one_figure_at_the_top_are_counted_and_none_is_named_first() -> None:
    """Also by the checks of the report, which average the layers as the answer does."""
    rows = cells("d1.auroc", STRATEGIES[:3], step=0.0) + [
        row for row in cells("d1.auroc", STRATEGIES) if row["strategy"] in STRATEGIES[3:]
    ]
    one = [row for row in rows if row["concept"] == "causation"]
    assert headline(best(one)) == (
        "To separate, three strategies are equal at the top. One concept is too few to tell strategies apart."
    )
    many = [row | {"concept": f"{row['concept']}{n}"} for n in range(9) for row in rows]
    assert headline(best(many)) == "To separate, three strategies are equal at the top."
    layers = [row | {"layer": layer} for layer in (1, 2) for row in one]
    layers[-1] |= {"value": 0.95}  # the best of one layer, and not of both
    (check,) = concept_checks(layers, leaders(layers))
    assert check["best"] == {"strategy": "A1_mean, A2_max, P1_last_token", "value": 0.9}


def test_two_strategies_on_many_concepts_can_be_told_apart() -> None:
    rows = [row | {"concept": f"{row['concept']}{n}"} for n in range(3) for row in cells("d1.auroc", STRATEGIES[:2])]
    (said,) = answers(best(rows))
    assert said.endswith("All others are worse beyond chance (Nemenyi's test, 5 %).")


def test_few_concepts_tell_no_strategies_apart_which_is_said_once() -> None:
    rows = [*cells("d1.auroc", STRATEGIES), *cells("d2.best_gain", STRATEGIES[::-1])]
    found = best([row for row in rows if row["concept"] in SIX_CONCEPTS[:4]])
    assert all(said.endswith(" of 5 over 4 concepts and a mean d1.auroc of 0.885.") for said in [*answers(found)][:1])
    assert headline(found) == (
        "To steer, L3_entity comes first. To separate, A1_mean comes first. Four concepts are too few "
        "to tell strategies apart."
    )
    (said,) = answers(one := best([row for row in cells("d1.auroc", STRATEGIES) if row["concept"] == "hedging"]))
    assert said == "For probing, A1_mean has the best d1.auroc of 5 on hedging: 0.880."
    assert headline(one) == "To separate, A1_mean comes first. One concept is too few to tell strategies apart."
    assert {each.tied for each in [*found.values(), *one.values()] if each} == {()}


def test_each_problem_is_one_line() -> None:
    audit = [{"concept": "contrast", "verdict": "confounded"}, {"concept": "hedging", "verdict": "pass"}]
    gate = {"metric": "scorer.gate", "params": '{"part": "verdict"}', "strategy": None}
    rows = [gate | {"scorer": "hedging", "value": 0.0}, gate | {"scorer": "contrast", "value": 1.0}]
    gains = cells("d2.best_gain", STRATEGIES)
    broken = {"value": None, "status": "not_fluent", "reason": "the texts are not fluent"}
    invalid = {"value": None, "status": "scorer_invalid", "reason": "its gate"}
    rows += [*(row | broken for row in gains[:3]), gains[3] | invalid, *gains[4:]]
    rows += [gate | {"scorer": "politeness", "value": 0.0}, *cells("d1.auroc", STRATEGIES[:1])]
    rows += [
        {"metric": "d1.saturation", "concept": "planning", "strategy": None, "reason": "saturated", "params": "{}"}
    ]
    curves = [
        {"concept": "narrative", "strength": 0.0, "score": 0.87},
        {"concept": "planning", "strength": 0.0, "score": 0.1},
    ]
    assert [problem.text for problem in problems(audit, rows, curves)] == [
        "contrast: the verdict on its passages is confounded",
        "hedging: its scorer failed the gate, so that D2 and D3 are null",
        "politeness: its scorer failed the gate, so that D3 against it is null",
        "planning: most strategies reach a D1 of 0.99, so that their order says little",
        "narrative: unsteered texts have a score of 0.87 already, so that D2 and D3 say little",
        "d2.best_gain of A1_mean, A2_max, P1_last_token on causation are null, not_fluent: the texts are not fluent",
    ]


def test_the_headline_says_how_sure_it_is() -> None:
    many = [row | {"concept": f"{row['concept']}{n}"} for n in range(3) for row in cells("d1.auroc", STRATEGIES[:2])]
    assert headline(best(many)) == "To separate, pool with A1_mean: it beats all others."
    equal = [*cells("d1.auroc", STRATEGIES), *cells("d2.best_gain", STRATEGIES[::-1], step=0.0)]
    steering, separating = headline(best(equal)).split(" To separate, ")
    assert steering == "To steer, five strategies are equal at the top."
    assert separating == "A1_mean or one of two others: the data cannot tell them apart."
    assert headline(best([])) == "No two strategies have a value to compare."
