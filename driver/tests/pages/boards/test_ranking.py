"""The rank board by hand, its rules written once more, and boards of families, layers and models."""

from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from poolbench.errors import ConfigError
from poolbench_driver.pages.boards.agreement import layer_stability, rank_agreements
from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.pages.boards.ranks import block_agreement, boards_by, family_ranks, winning_rates
from poolbench_driver.statistics.ranks import nemenyi_critical_difference


def cell(strategy, concept, value, status="ok", metric="d1.auroc"):
    value = None if status != "ok" else value
    return {"strategy": strategy, "concept": concept, "metric": metric, "value": value, "status": status}


def grid(values, **columns):
    """Cells from {strategy: [value a concept]}."""
    return [{**cell(s, f"c{n}", value), **columns} for s, row in values.items() for n, value in enumerate(row)]


def ranks_of(board):
    return dict(zip(board.entrants, (m.value for m in board.measures), strict=True))


@pytest.mark.parametrize(("metric", "ranks"), [("d2.best_gain", [1.5, 1.5, 3]), ("d2.scp_1", [1, 2, 3])])
def test_gains_that_differ_by_jitter_share_their_rank(metric, ranks):
    values = {"a": 0.2049, "b": 0.2011, "c": 0.18}
    board = rank_board([cell(name, "x", value, metric=metric) for name, value in values.items()], metric)
    assert (board.entrants, [measure.value for measure in board.measures]) == (("a", "b", "c"), ranks)
    assert board.values_NK.tolist() == [list(values.values())]


def test_a_metric_without_direction_is_not_ranked():
    cells = [{**each, "metric": "d2.best_strength"} for each in grid({"A1": [0.1], "P1": [0.2]})]
    with pytest.raises(ConfigError, match="no direction"):
        rank_board(cells, "d2.best_strength")


def test_a_strategy_that_lacks_a_concept_does_not_lead():
    """W1 is first wherever it is measured, on two of three concepts; L1 has no value at all."""
    cells = grid({"W1": [0.9, 0.9, None], "A1": [0.8, 0.8, 0.8], "P1": [0.5, 0.5, 0.9], "L1": [None] * 3})
    cells = [{**each, "status": "ok" if each["value"] is not None else "failed"} for each in cells]
    board = rank_board(cells, "d1.auroc")
    assert board.entrants == ("A1", "P1", "W1", "L1")
    assert ranks_of(board) == {"A1": 2, "P1": pytest.approx(7 / 3), "W1": 1, "L1": None}
    families = family_ranks(board, {"W1": "W", "A1": "A", "P1": "A"})
    assert [(rank.family, rank.num_blocks) for rank in families] == [("A", 3), ("W", 2), ("L1", 0)]


def test_a_clear_winner_is_significant():
    rng = np.random.default_rng(0)
    values = {f"s{k}": rng.random(17) * 0.1 for k in range(4)} | {"best": 0.5 + rng.random(17) * 0.1}
    board = rank_board(grid(values), "d1.auroc")
    assert ranks_of(board)["best"] == 1
    assert board.summary["friedman_p"] < 1e-4
    assert board.summary["critical_difference"] == pytest.approx(nemenyi_critical_difference(5, 17))
    pairs = [row for row in board.pairwise if row["strategy"] == "best"]
    assert all(row["p_holm"] < 0.01 and row["effect"] == 1 and row["rank_difference"] < 0 for row in pairs)
    interval = board.measures[1]
    assert interval.ci_low <= interval.value <= interval.ci_high


def test_one_block_has_ranks_but_no_interval_and_no_test():
    board = rank_board(grid({"A1": [0.9], "P1": [0.7], "W1": [0.8]}), "d1.auroc")
    assert [(m.value, m.ci_low) for m in board.measures] == [(1, None), (2, None), (3, None)]
    assert board.summary["friedman_p"] is None
    assert board.summary["reason"].startswith("too_few")


def test_all_ties_share_the_middle_and_show_nothing():
    board = rank_board(grid({"A1": [0.5] * 6, "P1": [0.5] * 6, "W1": [0.5] * 6}), "d1.auroc")
    assert set(ranks_of(board).values()) == {2}
    assert board.summary["reason"].startswith("collapsed")
    assert all(row["p_holm"] == 1 and row["effect"] == 0 for row in board.pairwise)
    assert board.summary["tie_groups"] == [["A1", "P1", "W1"]]


def test_a_pair_without_a_common_block_is_null():
    cells = grid({"A1": [0.9, 0.9], "P1": [0.5, 0.6]})
    cells += [cell("W1", "c2", 0.3), cell("A1", "c2", 0.2)]
    (row,) = [r for r in rank_board(cells, "d1.auroc").pairwise if {r["strategy"], r["other"]} == {"P1", "W1"}]
    assert (row["p"], row["p_holm"], row["effect"], row["status"]) == (None, None, None, "too_few")


def test_a_worst_rank_null_counts_as_the_largest_difference():
    values = grid({"A1": [0.6, 0.7, 0.5], "P2": [0.7, 0.9]})
    board = rank_board([*values, cell("P2", "c2", None, "collapsed")], "d1.auroc")
    (row,) = board.pairwise  # differences P2 - A1: .1, .2, -inf with ranks 1 2 3
    assert (row["strategy"], row["effect"], row["n"]) == ("P2", 0, 3)
    assert row["value_difference"] == pytest.approx(0.15)


def test_ranks_ignore_the_order_of_rows():
    rng = np.random.default_rng(1)
    cells = grid({f"s{k}": rng.random(9) for k in range(5)})
    shuffled = [cells[k] for k in rng.permutation(len(cells))]
    first, second = rank_board(cells, "d1.auroc"), rank_board(shuffled, "d1.auroc")
    assert first.measures == second.measures and first.pairwise == second.pairwise


@pytest.mark.parametrize(
    ("column", "first", "second"),
    [
        ("protocol", "corrected", "published"),
        ("dataset", "real", "planted"),
        ("dataset_revision", "real-1", "real-2"),
        ("budget", "demo", "card"),
        ("suite", "poolbench", "holmes"),
        ("direction", "C1", "C2"),
        ("alpha_unit", "residual_norm", "absolute"),
        ("opening_set", "neutral-54", "published-10"),
        ("metric_version", 1, 2),
    ],
)
def test_different_quantities_are_never_ranked_together(column, first, second):
    """Published beside corrected, planted beside real: one row among many is refused, not averaged in."""
    cells = [{**row, column: first} for row in grid({"A1": [0.9, 0.8], "P1": [0.7, 0.9], "W1": [0.8, 0.7]})]
    mixed = [*cells[:-1], {**cells[-1], column: second}]
    either = " and ".join(sorted(map(str, (first, second))))
    with pytest.raises(ConfigError, match=f"d1.auroc of {column} {either}: .* never ranked together"):
        rank_board(mixed, "d1.auroc")
    with pytest.raises(ConfigError, match=column):
        layer_stability([{**row, "layer": 1} for row in mixed], "d1.auroc")
    assert rank_board([*cells[:-1], {**cells[-1], column: None}], "d1.auroc") is not None  # a null row may not say
    other = {**cells[-1], "metric": "d2.scp", column: second}
    assert rank_board([*cells, other], "d1.auroc") is not None  # another metric is not ranked here
    apart = boards_by([*cells, *({**row, column: second} for row in cells)], "d1.auroc", lambda row: str(row[column]))
    assert set(apart) == {str(first), str(second)}


def test_two_versions_of_one_strategy_are_refused():
    cells = [{**row, "strategy_version": 1} for row in grid({"A1": [0.9, 0.8], "P1": [0.7, 0.9]})]
    cells[1]["strategy_version"] = 2
    with pytest.raises(ConfigError, match="strategy_version of A1 1 and 2"):
        rank_board(cells, "d1.auroc")
    cells[0]["strategy_version"] = 2
    assert rank_board(cells, "d1.auroc") is not None  # strategies need not have the same version


def test_a_value_difference_is_first_minus_second_where_lower_is_better_too():
    cells = [{**each, "metric": "d3.rep_ld"} for each in grid({"A1": [0.1, 0.2], "P1": [0.4, 0.4]})]
    board = rank_board(cells, "d3.rep_ld")
    (row,) = board.pairwise
    assert (row["strategy"], row["effect"], row["rank_difference"]) == ("A1", 1, -1)
    assert row["value_difference"] == pytest.approx(-0.25)
    worst = rank_board([*cells, cell("P2", "c0", None, "collapsed", "d3.rep_ld")], "d3.rep_ld")
    assert dict(zip(worst.entrants, worst.ranks_NK[0], strict=True))["P2"] == 3


def test_blocks_that_are_left_out_are_named():
    cells = grid({"A1": [0.9, 0.9], "P1": [0.5, 0.5], "W1": [0.7, 0.7]})
    cells += [cell("A1", "lonely", 0.9)]
    cells += [cell(s, "flat", None, "collapsed") for s in ("A1", "P1")]
    cells[-4] = cell("W1", "c1", None, "failed")
    assert rank_board(cells, "d1.auroc").summary["dropped"] == {"lonely": "too_few", "flat": "too_few"}
    complete = rank_board(cells, "d1.auroc", complete=True)
    assert complete.blocks == ("c0",)
    assert complete.summary["dropped"] == {"c1": "without W1", "flat": "too_few", "lonely": "too_few"}


def test_a_strategy_that_failed_everywhere_takes_no_test_from_the_others():
    rng = np.random.default_rng(3)
    values = {f"s{k}": rng.random(8) for k in range(4)}
    whole = rank_board(grid(values), "d1.auroc")
    cells = [*grid(values), *(cell("X1", f"c{n}", None, "failed") for n in range(8)), cell("X1", "elsewhere", 0.5)]
    for complete in (False, True):
        board = rank_board(cells, "d1.auroc", complete=complete)
        assert ranks_of(board) == {**ranks_of(whole), "X1": None}
        tests = ("friedman_p", "iman_davenport_p", "critical_difference", "num_blocks", "tie_groups", "reason")
        assert {name: board.summary[name] for name in tests} == {name: whole.summary[name] for name in tests}
        own = [row for row in board.pairwise if row["other"] != "X1"]
        assert own == whole.pairwise
        assert all(row["p_nemenyi"] is None for row in board.pairwise if row["other"] == "X1")


def test_all_the_rules_at_once_by_hand():
    """Two models, one of them with two layers; every kind of null in one table."""
    units = [("m", 1), ("m", 2), ("n", 1)]

    def cells(strategy, concept, values, status="ok"):
        at = zip(units, values, strict=True)
        return [{**cell(strategy, concept, v, status), "model": m, "layer": k} for (m, k), v in at]

    table = [
        # c0: A1 (.6 + .8) / 2 = .7 and .9 -> .8; P1 .5 and .5 -> .5; W1 .9 and .1 -> .5; P2 collapsed in one layer
        *cells("A1", "c0", [0.6, 0.8, 0.9]), *cells("P1", "c0", [0.5, 0.5, 0.5]), *cells("W1", "c0", [0.9, 0.9, 0.1]),
        *cells("P2", "c0", [0.99] * 3)[:2], *cells("P2", "c0", [None] * 3, "collapsed")[2:],
        # c1: W1 lacks a layer, so it is missing; P2 and L3 share the worst rank
        *cells("A1", "c1", [0.6] * 3), *cells("P1", "c1", [0.7] * 3), *cells("W1", "c1", [0.9] * 3)[1:],
        *cells("P2", "c1", [None] * 3, "no_coverage"), *cells("L3", "c1", [None] * 3, "class_dependent_coverage"),
        # c2: its scorer is invalid for one model
        *cells("A1", "c2", [0.1] * 3), *cells("P1", "c2", [0.2] * 3), *cells("W1", "c2", [None] * 3, "scorer_invalid"),
        # c3: L3 failed, S2 is not built
        *cells("A1", "c3", [0.3] * 3), *cells("P1", "c3", [0.2] * 3), *cells("W1", "c3", [0.1] * 3),
        *cells("P2", "c3", [0.05] * 3), *cells("L3", "c3", [None] * 3, "failed"),
        *cells("S2", "c3", [None] * 3, "not_implemented"),
    ]  # fmt: skip
    board = rank_board(table, "d1.auroc")
    assert board.blocks == ("c0", "c1", "c3") and board.summary["dropped"] == {"c2": "scorer_invalid"}
    by_name = dict(zip(board.entrants, board.ranks_NK.T.tolist(), strict=True))
    nan = pytest.approx(np.nan, nan_ok=True)
    assert by_name == {
        "A1": [1, 2, 1], "P1": [2.5, 1, 2], "W1": [2.5, nan, 3], "P2": [4, 3.5, 4], "L3": [nan, 3.5, nan],
    }  # fmt: skip
    assert ranks_of(board) == pytest.approx({"A1": 4 / 3, "P1": 5.5 / 3, "W1": 2.75, "L3": 3.5, "P2": 11.5 / 3})
    assert board.summary["num_blocks"] == 0 and board.summary["reason"].startswith("too_few")
    pairs = {frozenset((row["strategy"], row["other"])): row for row in board.pairwise}
    first = pairs[frozenset(("A1", "P1"))]  # differences .3, -.1, .1: ranks 3, 1.5, 1.5
    assert (first["n"], first["effect"], first["value_difference"]) == (3, pytest.approx(0.5), pytest.approx(0.1))
    assert first["p"] == pytest.approx(stats.permutation_test(
        (np.array([3, -1.5, 1.5]),), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue)  # fmt: skip
    assert pairs[frozenset(("P2", "L3"))]["n"] == 1 and pairs[frozenset(("P2", "L3"))]["p"] == 1
    assert rank_board(table, "d1.auroc", complete=True) is None  # no concept has them all


WORST = {"collapsed", "no_coverage", "class_dependent_coverage"}
STATUSES = ["ok"] * 12 + ["failed", "too_few", *sorted(WORST), "not_implemented"]
UNITS = [("m", 1), ("m", 2), ("n", 1)]


def random_table(rng):
    rows = []
    for concept in range(rng.integers(1, 6)):
        for strategy in "ABCDE"[: rng.integers(2, 6)]:
            status = str(rng.choice(STATUSES))
            for model, layer in UNITS:
                own = status if rng.random() < 0.8 else "ok"
                if rng.random() < 0.05:
                    continue  # no row at all
                if rng.random() < 0.01:
                    own = "scorer_invalid"
                rows.append(
                    {"metric": "d1.auroc", "concept": f"c{concept}", "strategy": strategy, "model": model,
                     "layer": layer, "status": own, "value": float(rng.integers(0, 4)) if own == "ok" else None}
                )  # fmt: skip
    return rows


def value_of(rows, units):
    """One strategy in one concept: None is a missing cell, "worst" the shared last place."""
    if {(row["model"], row["layer"]) for row in rows} != units:
        return None
    if any(row["status"] not in WORST | {"ok"} for row in rows):
        return None
    if any(row["status"] in WORST for row in rows):
        return "worst"
    models = {row["model"] for row in rows}
    return fmean(fmean(row["value"] for row in rows if row["model"] == model) for model in models)


def ranks_of_block(values):
    """1 is best; equal values share the mean of their places, and so do all that are worst."""
    goodness = {name: -np.inf if value == "worst" else value for name, value in values.items()}
    return {
        name: 1 + sum(o > own for o in goodness.values()) + (sum(o == own for o in goodness.values()) - 1) / 2
        for name, own in goodness.items()
    }


def expected_blocks(rows):
    blocks = {}
    for concept in sorted({row["concept"] for row in rows}):
        own = [row for row in rows if row["concept"] == concept]
        if any(row["status"] == "scorer_invalid" for row in own):
            continue
        own = [row for row in own if row["status"] != "not_implemented"]
        units = {(row["model"], row["layer"]) for row in own}
        found = {s: value_of([r for r in own if r["strategy"] == s], units) for s in {r["strategy"] for r in own}}
        values = {name: value for name, value in found.items() if value is not None}
        if len(values) >= 2 and set(values.values()) != {"worst"}:
            blocks[concept] = ranks_of_block(values)
    return blocks


@pytest.mark.parametrize("seed", range(60))
def test_random_tables_are_ranked_as_the_rules_say(seed):
    rows = random_table(np.random.default_rng(seed))
    blocks = expected_blocks(rows)
    board = rank_board(rows, "d1.auroc")
    assert (board is None) == (not blocks)
    if board is None:
        return
    assert board.blocks == tuple(blocks)
    for name, measure in zip(board.entrants, board.measures, strict=True):
        ranks = [block[name] for block in blocks.values() if name in block]
        assert (measure.value, measure.n) == ((pytest.approx(fmean(ranks)), len(ranks)) if ranks else (None, 0))
    everybody = {name for block in blocks.values() for name in block}
    whole = [[block[name] for name in sorted(everybody)] for block in blocks.values() if set(block) == everybody]
    complete = rank_board(rows, "d1.auroc", complete=True)
    assert (complete is None) == (not whole)
    assert board.summary["num_blocks"] == len(whole)
    if len(whole) >= 2 and len(everybody) >= 3 and any(len(set(row)) > 1 for row in whole):
        oracle = stats.friedmanchisquare(*np.array(whole).T)
        assert board.summary["friedman_p"] == pytest.approx(oracle.pvalue)
        assert complete.summary["friedman_p"] == board.summary["friedman_p"]


FAMILIES = {"c0": "register", "c1": "register", "c2": "lexical"}


def test_a_board_for_each_concept_family():
    cells = grid({"A1": [0.9, 0.9, 0.1], "P1": [0.5, 0.5, 0.5]})
    boards = boards_by(cells, "d1.auroc", lambda row: FAMILIES[row["concept"]])
    assert list(boards) == ["lexical", "register"]
    assert ranks_of(boards["register"]) == {"A1": 1, "P1": 2}
    assert ranks_of(boards["lexical"]) == {"P1": 1, "A1": 2}
    assert boards["lexical"].measures[0].ci_low is None  # one concept


def test_parts_without_a_board_are_left_out():
    cells = grid({"A1": [0.9], "P1": [0.5]}, model="m")
    assert boards_by(cells, "d1.auroc", lambda row: None) == {}
    assert boards_by(cells[:1], "d1.auroc", lambda row: row["model"]) == {}


def test_family_ranks_by_hand():
    # ranks: A1 1 2, A2 2 1, P1 3 3
    board = rank_board(grid({"A1": [0.9, 0.8], "A2": [0.8, 0.9], "P1": [0.1, 0.2]}), "d1.auroc")
    mean, window = family_ranks(board, {"A1": "mean", "A2": "mean", "P1": "window"})
    assert (mean.family, mean.mean_rank, mean.strategies, mean.num_blocks) == ("mean", 1.5, ("A1", "A2"), 2)
    assert mean.interval == (1.5, 1.5)
    assert (window.family, window.mean_rank, window.interval) == ("window", 3, (3.0, 3.0))
    # A family without a rank comes last and is null; a strategy without family stands for itself.
    cells = grid({"A1": [0.9, 0.8], "P1": [0.1, 0.2]})
    cells += [{**cells[0], "strategy": "X9", "value": None, "status": "failed"}]
    found = family_ranks(rank_board(cells, "d1.auroc"), {"A1": "mean", "P1": "window"})
    assert [(rank.family, rank.mean_rank, rank.num_blocks) for rank in found] == [
        ("mean", 1, 2), ("window", 2, 2), ("X9", None, 0),
    ]  # fmt: skip


def boards_with(first, second):
    cells = grid(first, layer=1) + grid(second, layer=2)
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
    rising = {name: [place] for place, name in enumerate("abcd")}
    (single,) = rank_agreements(boards_with(rising, rising))
    assert (single.value, single.interval) == (pytest.approx(1), None)


def test_winning_rates_and_agreement_of_concepts():
    board = rank_board(grid({"A1": [0.9, 0.9, 0.1], "P1": [0.5, 0.5, 0.5], "W1": [0.4, 0.4, 0.9]}), "d1.auroc")
    assert winning_rates(board) == pytest.approx({"A1": 4 / 6, "P1": 3 / 6, "W1": 2 / 6})
    assert block_agreement(board) == pytest.approx({"c0": 1, "c1": 1, "c2": -1})
