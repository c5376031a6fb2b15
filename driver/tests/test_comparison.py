"""compare: pairing by identity, differences with intervals, ranks, refusals, exit codes."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests import conftest

from poolbench.errors import ConfigError, InputError, IntegrityError, NotFoundError, UnknownNameError
from poolbench.statistics.paired import paired_permutation_test
from poolbench_driver import leaderboard, load, ranks
from poolbench_driver.comparison import as_markdown, as_sentence, as_tables, compare_runs, join_rows
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.pages.boards.ranking import rank_board
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.results import result_table

Rows = list[dict[str, Any]]
STRATEGIES, CONCEPTS = ("A1_mean", "P1_last_token", "W1_first_k"), tuple(f"c{k}" for k in range(8))


def run_of(lift: float = 0.0, seed: int = 0, noise: float = 0.0, **columns: Any) -> Rows:
    """Rows of a run: one strategy a level, ``lift`` added to P1_last_token; the same seed gives the same values."""
    base, jitter = np.random.default_rng(7), np.random.default_rng(seed)
    rows = []
    for k, strategy in enumerate(STRATEGIES):
        for concept in CONCEPTS:
            for layer in (1, 2):
                value = 0.8 - 0.1 * k + 0.01 * base.normal() + noise * jitter.normal()
                value += lift if strategy == "P1_last_token" else 0
                rows.append(_row(strategy, concept, layer, value, **columns))
    board = rank_board(rows, "d1.auroc")
    assert board is not None
    ranks = [{**rows[0], **row, "concept": None, "layer": None, "split": None} for row in board.rows()]
    return result_table(rows + [{**row, "params": row["params"]} for row in ranks]).to_pylist()


def _row(strategy: str, concept: str, layer: int, value: float, **columns: Any) -> dict[str, Any]:
    shared = {
        "run_id": "r", "suite": "poolbench", "protocol": "corrected", "budget": "demo", "model": "m",
        "model_revision": "1", "dataset_revision": "d1", "split": "train", "metric": "d1.auroc", "metric_version": 1,
        "strategy_version": 1, "params": "{}", "status": "ok",
    }  # fmt: skip
    return {**shared, "strategy": strategy, "concept": concept, "layer": layer, "value": value, **columns}


def test_a_run_compared_with_itself_shows_nothing() -> None:
    rows = run_of()
    changes = compare_runs(rows, rows)
    assert changes.summary == {"common": 48, "only_first": 0, "only_second": 0, "changed_status": 0, "changed_value": 0}
    assert not changes.changed()
    assert all(row["difference"] == 0 and row["p"] == 1 for row in changes.values)
    assert all(row["change"] == row["ci_low"] == row["ci_high"] == 0 for row in changes.ranks)
    assert changes.agreement[0]["value"] == pytest.approx(1)


def test_a_planted_lift_is_found_with_its_interval_and_ranks() -> None:
    changes = compare_runs(run_of(noise=0.01), run_of(lift=0.25, noise=0.01, seed=1))
    by_strategy = {row["strategy"]: row for row in changes.values}
    lifted, same = by_strategy["P1_last_token"], by_strategy["A1_mean"]
    assert lifted["ci_low"] < 0.25 < lifted["ci_high"] and lifted["ci_low"] > 0.2
    assert lifted["p"] == 2 / 2**8 and lifted["p_holm"] == pytest.approx(3 * lifted["p"])
    assert same["ci_low"] < 0 < same["ci_high"]
    assert by_strategy["*"]["difference"] == pytest.approx(0.25 / 3, abs=0.01)
    assert (lifted["concepts"], lifted["cells"]) == (8, 16)
    ranks = {row["strategy"]: row for row in changes.ranks}
    assert (ranks["P1_last_token"]["first"], ranks["P1_last_token"]["second"]) == (2, 1)
    assert ranks["P1_last_token"]["ci_high"] == -1 and ranks["A1_mean"]["change"] == 1


def test_p_is_that_of_concept_means() -> None:
    first, second = run_of(), run_of(noise=0.02, seed=3)
    (row,) = [r for r in compare_runs(first, second).values if r["strategy"] == "W1_first_k"]
    cells = [(a, b) for a, b in zip(first, second, strict=True) if a["strategy"] == "W1_first_k" and a["layer"]]
    gaps = np.array([b["value"] - a["value"] for a, b in cells])
    assert row["p"] == pytest.approx(paired_permutation_test(gaps.reshape(8, 2).mean(axis=1)).p_value)


def test_lost_cells_and_statuses_are_listed() -> None:
    first, second = run_of(), run_of()
    second[0] |= {"value": None, "status": "failed", "reason": "out of memory"}
    changes = compare_runs(first, second[:20] + second[21:])
    (lost,) = changes.only_first
    assert (changes.summary["only_first"], lost["strategies"], lost["cells"]) == (1, "P1_last_token", 1)
    assert lost["why"] == "other strategies, concepts or settings"
    (status,) = changes.statuses
    assert (status["from"], status["to"], status["cells"], status["reason"]) == ("ok", "failed", 1, "out of memory")
    assert changes.changed()


def test_a_strategy_that_failed_in_one_run_moves_no_other() -> None:
    failed = [
        {**row, "value": None, "status": "failed"} if row["strategy"] == "A1_mean" else row
        for row in run_of(noise=0.001, seed=2)
    ]
    changes = compare_runs(failed, run_of())
    assert {row["strategy"]: row["change"] for row in changes.ranks} == {"P1_last_token": 0, "W1_first_k": 0}
    collapsed = [{**row, "status": "collapsed"} if row["status"] == "failed" else row for row in failed]
    ranks = {row["strategy"]: (row["first"], row["second"]) for row in compare_runs(collapsed, run_of()).ranks}
    assert ranks == {"A1_mean": (3, 1), "P1_last_token": (1, 2), "W1_first_k": (2, 3)}


def test_cells_of_another_layer_say_so() -> None:
    moved = [{**row, "layer": 5} if row["layer"] == 2 else row for row in run_of()]
    changes = compare_runs(run_of(), moved)
    assert changes.only_first[0]["why"] == "layer 2 here, 1, 5 there"
    assert changes.only_first[0]["strategies"] == "A1_mean, P1_last_token, W1_first_k"


@pytest.mark.parametrize("column", ["budget", "protocol"])
def test_other_budgets_and_protocols_are_refused(column: str) -> None:
    other = run_of(**{column: "card" if column == "budget" else "published"})
    with pytest.raises(ConfigError, match=f"not comparable: {column} .* against"):
        compare_runs(run_of(), other)


def test_another_model_needs_to_be_asked_for() -> None:
    other = run_of(lift=0.25, model="n", model_revision="2")
    with pytest.raises(ConfigError, match=r"no cell in common: model m against n \(--across model\)"):
        compare_runs(run_of(), other)
    assert compare_runs(run_of(), other, across=["model"]).summary["common"] == 48
    with pytest.raises(UnknownNameError, match="model"):
        compare_runs(run_of(), other, across=["modell"])


def test_two_rows_of_one_cell_are_refused() -> None:
    rows = run_of()
    with pytest.raises(InputError, match=r"first run: two rows of one cell: .*strategy A1_mean"):
        compare_runs([*rows, rows[0]], rows)


def test_one_concept_has_no_interval() -> None:
    first, second = ([row for row in run_of(lift=x) if row["concept"] in ("c0", None)] for x in (0, 0.25))
    (row,) = [r for r in compare_runs(first, second).values if r["strategy"] == "P1_last_token"]
    assert (row["ci_low"], row["p"], row["concepts"]) == (None, 1, 1)


def test_means_and_difference_weigh_concepts_alike() -> None:
    """A concept that lost a layer counts as much as the others, in the means as in their difference."""
    first, second = run_of(), run_of(noise=0.05, seed=3)
    second[0] |= {"value": None, "status": "failed", "reason": "out of memory"}
    for row in compare_runs(first, second).values:
        assert row["second"] - row["first"] == pytest.approx(row["difference"])


def test_tables_leave_out_what_stayed_unless_asked() -> None:
    changes = compare_runs(run_of(), run_of(lift=0.25))
    short, full = ({t[0]: t[2] for t in as_tables(changes, everything=e)} for e in (False, True))
    title = next(name for name in short if name.startswith("values"))
    assert [row["strategy"] for row in short[title]] == ["*", "P1_last_token"]
    assert len(full[title]) == 4
    text = as_markdown(as_tables(changes), as_sentence(changes, "one", "two"))
    assert text.startswith("# one against two: of 48 common cells, 16 changed in value")
    assert "| d1.auroc | P1_last_token |" in text and "better" in text


def test_one_concept_shows_the_ranked_metrics_first() -> None:
    """No test can say anything there, and another figure may have moved further."""
    sides = []
    for lift in (0.0, 0.01):
        rows = [row for row in run_of(lift=lift) if row["concept"] in ("c0", None)]
        other = [{**row, "metric": "d1.selectivity", "value": 9 * lift} for row in rows if row["concept"]]
        sides.append([*other, *rows])
    changes = compare_runs(*sides)
    ((_, _, values), *_) = as_tables(changes)
    assert [row["metric"] for row in values] == ["d1.auroc"] * 2 + ["d1.selectivity"] * 4
    ((_, _, same),) = as_tables(compare_runs(sides[0], sides[0]))
    assert [(row["metric"], row["strategy"], row["difference"]) for row in same] == [("d1.auroc", "*", "0.0000")]


def test_three_concepts_are_no_verdict_although_their_interval_leaves_out_zero() -> None:
    few = ("c0", "c1", "c2", None)
    first, second = ([row for row in run_of(lift=x) if row["concept"] in few] for x in (0, 0.25))
    changes = compare_runs(first, second)
    row = next(r for r in changes.values if r["strategy"] == "P1_last_token")
    assert row["ci_low"] > 0 and row["p_holm"] > 0.05
    assert "better" not in as_markdown(as_tables(changes), "few")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, lift in (("one", 0.0), ("two", 0.25)):
        folder = create_run(tmp_path, load_run_config(None, {"preset": "demo", "seed": int(4 * lift)}))
        write_table(folder, "results", result_table(run_of(lift=lift)))
        folder.path.rename(tmp_path / name)
    return tmp_path


def invoked(*arguments: str, command: str = "compare") -> Any:
    return conftest.invoked(command, *arguments)


def test_the_command(runs: Path) -> None:
    where = ("--output", str(runs))
    found = json.loads(invoked("one", "two", *where, "--json").stdout)
    assert (found["first"], found["second"], found["summary"]["changed_value"]) == ("one", "two", 16)
    assert "## Mean ranks" in invoked("one", str(runs / "two"), *where, "--format", "markdown").stdout
    itself = invoked("one", "one", *where).stdout
    assert itself.startswith("one against itself: the same figures in 48 common cells\n") and "d1.auroc" in itself
    table = invoked("one", "two", *where)
    assert table.stdout.startswith("one against two: of 48 common cells, 16 changed in value and 0 in status\n")
    assert "P1_last_token" in table.stdout and table.return_value == 0
    assert invoked("one", "two", *where, "--check").return_value == 1
    assert invoked("one", "one", *where, "--check").return_value == 0


def test_it_begins_with_what_changed_most_surely_and_ends_within_a_screen(runs: Path) -> None:
    """24 strategies in each of two metrics; a few of them are better, many failed, and each run lacks a concept."""
    sides = []
    for side, absent in (("one", "c2"), ("two", "c3")):
        rows = [
            {**row, "strategy": f"{row['strategy']}:k={k}", "metric": metric}
            for k in range(8)
            for metric in ("d1.auroc", "d1.auroc_test")
            for row in run_of(lift=0.25 * (k < 2 and side == "two"), noise=0.01, seed=2 * k + (side == "two"))
            if row["metric"] == "d1.auroc" and row["concept"] != absent
        ]
        board = rank_board(rows, "d1.auroc")
        assert board is not None
        blank = {**rows[0], "concept": None, "layer": None, "split": None}
        sides.append([*rows, *({**blank, **row} for row in board.rows())])
    for number, row in enumerate(sides[1][-300:-200]):
        row.update(value=None, status="failed", reason=f"out of memory, {number % 9}: " + "far too long a text " * 30)
    for side, rows in zip(("one", "two"), sides, strict=True):
        write_table(Run(runs / side), "results", result_table(rows))
    where = ("--output", str(runs))
    short, full = (invoked("one", "two", *where, *more).stdout.splitlines() for more in ((), ("--all",)))
    assert len(short) <= 40 < len(full)
    assert re.match(r"values.*: 6 of \d+ \(--all: the rest\)", short[1])
    assert all("P1_last_token" in line for line in short[7:11])  # no verdict, and the largest differences
    assert ["better" in line for line in short[5:11]] == [True] * 2 + [False] * 4


def test_a_copy_of_a_run_does_not_count_twice_on_a_board(runs: Path) -> None:
    where = ("--output", str(runs))
    shutil.copytree(runs / "one", runs / "again")
    for command in ("ranks", "leaderboard"):
        alone = invoked("one", *where, "--json", command=command).stdout
        assert invoked("one", "again", str(runs / "again"), *where, "--json", command=command).stdout == alone


def test_the_command_refuses(runs: Path) -> None:
    where = ("--output", str(runs))
    with pytest.raises(NotFoundError, match="no run 'three'"):
        invoked("one", "three", *where)
    with pytest.raises(UnknownNameError, match=r"d1\.auroc"):
        invoked("one", "two", *where, "--metric", "d1.auc")
    with pytest.raises(UnknownNameError, match=r"unknown metric 'rank\.mean'"):
        invoked("one", "two", *where, "--metric", "rank.mean")
    with pytest.raises(UnknownNameError, match="unknown format"):
        invoked("one", "two", *where, "--format", "html")


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("command", ["compare", "ranks"])
def test_results_that_cannot_be_read_are_named(runs: Path, command: str) -> None:
    names = ("two", "one") if command == "compare" else ("two",)
    file, table = runs / "two" / "results.parquet", result_table(run_of())
    write_table(Run(runs / "two"), "results", table.slice(0, 0))
    with pytest.raises(InputError, match=r"two/results\.parquet has no rows"):
        invoked(*names, "--output", str(runs), command=command)
    file.write_text("no table")
    with pytest.raises(IntegrityError, match="is damaged"):
        invoked(*names, "--output", str(runs), command=command)


def test_json_of_a_run_in_which_a_strategy_failed_everywhere(runs: Path) -> None:
    rows = [
        {**row, "value": None, "status": "failed", "ci_low": None, "ci_high": None}
        if row["strategy"] == "W1_first_k" and row["metric"] == "d1.auroc" else row
        for row in run_of()
    ]  # fmt: skip
    write_table(Run(runs / "two"), "results", result_table(rows))
    where = ("--output", str(runs), "--json")
    found = strict_json(invoked("two", *where, command="ranks").stdout)
    assert [family["mean_rank"] for family in found["strategy_families"]] == [1, 2, None]
    assert strict_json(invoked("one", "two", *where).stdout)["summary"]["changed_status"] == 16


def test_ranks_over_two_models(runs: Path) -> None:
    folder = Run(runs / "two")
    write_table(folder, "results", result_table(run_of(lift=0.25, model="n", model_revision="2")))
    found = json.loads(invoked("one", "two", "--output", str(runs), "--json", command="ranks").stdout)
    # P1_last_token: .7 and .95 on the two models, .825 on average; A1_mean .8
    assert [line["strategy"] for line in found["standings"]] == ["P1_last_token", "A1_mean", "W1_first_k"]
    assert found["models"]["parts"] == ["m (8)", "n (8)"]
    assert dict(found["models"]["rows"])["P1_last_token"][0].startswith("2.00")
    text = invoked("one", "two", "--output", str(runs), command="ranks").stdout
    assert text.startswith("## Ranks on d1.auroc: 8 concepts") and "## Ranks by model" in text


def test_python_and_the_command_have_one_board(runs: Path) -> None:
    write_table(Run(runs / "two"), "results", result_table(run_of(lift=0.25, model="n", model_revision="2")))
    for names in (("one", "two"), ("two", "one")):
        board = leaderboard(*names, output=runs)
        assert invoked(*names, "--output", str(runs), command="leaderboard").stdout.strip() == board.markdown.strip()
        figures = json.loads(invoked(*names, "--output", str(runs), "--json", command="leaderboard").stdout)
        assert figures == json.loads(json.dumps(board.to_pylist())) and {row["model"] for row in figures} > {"m", "n"}
        assert "Ranks by model" in str(board) and "Ranks by model" in board._repr_html_()


def test_a_cell_that_two_runs_measured_alike_counts_once() -> None:
    """Such as the baseline of two runs of CE-Bench, whose autoencoders differ."""
    first, second = ([row | {"is_apart": False} for row in run_of(lift=lift)] for lift in (0.0, 0.1))
    for row in second:
        row["strategy"] = {"P1_last_token": "A2_max", "W1_first_k": "A3_min"}.get(row["strategy"], row["strategy"])
    rows = join_rows([first, second])
    counts = Counter(row["strategy"] for row in rows if row["metric"] == "d1.auroc")
    assert counts == dict.fromkeys(("A1_mean", "P1_last_token", "W1_first_k", "A2_max", "A3_min"), 16)


def test_ranks_refuse_what_is_not_one_benchmark(runs: Path) -> None:
    where = ("--output", str(runs))
    with pytest.raises(InputError, match=r"two runs have different values of one cell: .*strategy P1_last_token"):
        invoked("one", "two", *where, command="ranks")
    with pytest.raises(UnknownNameError, match="ranked metric"):
        invoked("one", *where, "--metric", "d2.scp", command="ranks")
    write_table(Run(runs / "two"), "results", result_table(run_of(dataset_revision="d2")))
    with pytest.raises(ConfigError, match="dataset_revision d1 against d2"):
        invoked("one", "two", *where, command="ranks")
    rows = [{**row, "strategy": f"B_{row['strategy']}"} for row in run_of(model="n", model_revision="2")]
    write_table(Run(runs / "two"), "results", result_table(rows))
    with pytest.raises(ConfigError, match=r"d1\.auroc: no concept has two strategies with a value in every model"):
        invoked("one", "two", *where, command="ranks")


def test_python_compares_and_ranks_as_the_commands_do(runs: Path) -> None:
    where = ("--output", str(runs))
    one = load("one", output=runs)
    comparison = one.compare("two")
    assert json.loads(json.dumps(comparison.to_dict())) == json.loads(invoked("one", "two", *where, "--json").stdout)
    assert one.compare(load("two", output=runs), metrics=["d1.auroc"]).changes.values
    html = comparison._repr_html_()
    assert "16 changed in value" in html and "<script" not in html and "Mean ranks" in str(comparison)
    assert one.compare(one)._repr_html_()
    with pytest.raises(UnknownNameError, match=r"did you mean d1\.auroc"):
        one.compare("two", metrics=["d1.aurok"])
    with pytest.raises(NotFoundError, match="no run 'three'"):
        one.compare("three")
    ranked = ranks("one", output=runs)
    assert json.loads(json.dumps(ranked.view.to_json())) == json.loads(
        invoked("one", *where, "--json", command="ranks").stdout
    )
    assert ranked.view.standings and "P1_last_token" in ranked._repr_html_()
    with pytest.raises(UnknownNameError, match="ranked metric"):
        ranks("one", output=runs, metric="d9")
