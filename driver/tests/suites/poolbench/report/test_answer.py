"""The answer of PoolBench's page: who leads, what it cannot be told from, and what is wrong."""

from typing import Any

from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.suites.poolbench.report.answer import (
    QUESTIONS,
    Best,
    answers,
    best_of,
    headline,
    leaders,
    problems,
)
from poolbench_driver.suites.poolbench.report.checks import concept_checks

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


def test_what_is_tied_lies_within_the_critical_difference_on_both_sides_of_the_best() -> None:
    """W2_last_k has the best mean rank and lacks a concept, so that it stands last and is not the best one."""
    orders = [("W2_last_k", "A1_mean", "A2_max", "P1_last_token", "L3_entity")] * 5
    orders += [("W2_last_k", "A2_max", "A1_mean", "P1_last_token", "L3_entity")] * 3
    orders += [("W2_last_k", "P1_last_token", "A1_mean", "A2_max", "L3_entity")] * 4
    rows = [
        {"concept": f"c{number}", "strategy": name, "metric": "d1.auroc", "value": 0.9 - 0.05 * place}
        | {"status": "ok", "layer": 1, "model": "m", "scorer": None, "params": "{}"}
        for number, order in enumerate(orders)
        for place, name in enumerate(order)
    ]
    rows[0] |= {"value": None, "status": "too_few"}
    board = rank_board(rows, "d1.auroc")
    assert board is not None and board.entrants[0] == "A1_mean"
    means = {name: measure.value for name, measure in zip(board.entrants, board.measures, strict=True)}
    limit = board.summary["critical_difference"]
    within = {name for name, mean in means.items() if abs(mean - means["A1_mean"]) < limit} - {"A1_mean"}
    found = best(rows)["probing"]
    assert found is not None and set(found.tied) == within
    assert means["W2_last_k"] < means["A1_mean"] and means["P1_last_token"] - means["W2_last_k"] > limit
    assert within == {"W2_last_k", "A2_max", "P1_last_token"}


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
    gate = {"metric": "scorer.gate", "params": '{"part": "verdict"}', "strategy": None, "status": "ok"}
    rows = [gate | {"scorer": "hedging", "value": 0.0}, gate | {"scorer": "contrast", "value": 1.0}]
    gains = cells("d2.best_gain", STRATEGIES)
    broken = {"value": None, "status": "not_fluent", "reason": "the texts are not fluent"}
    invalid = {"value": None, "status": "scorer_invalid", "reason": "its gate"}
    rows += [*(row | broken for row in gains[:3]), gains[3] | invalid, *gains[4:]]
    rows += [gate | {"scorer": "politeness", "value": 0.0}, *cells("d1.auroc", STRATEGIES[:1])]
    rows += [gate | {"metric": "d1.saturation", "concept": "planning", "reason": "saturated", "params": "{}"}]
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
    (said,) = answers(best(many))
    assert said.endswith("All others are worse beyond chance (Nemenyi's test, 5 %).")
    equal = [*cells("d1.auroc", STRATEGIES), *cells("d2.best_gain", STRATEGIES[::-1], step=0.0)]
    steering, separating = headline(best(equal)).split(" To separate, ")
    assert steering == "To steer, five strategies are equal at the top."
    assert separating == "A1_mean or one of two others: the data cannot tell them apart."
    assert headline(best([])) == "No two strategies have a value to compare."
