"""Whether the data of a board tell neighbours apart: figures by hand, the sentence, the command, bad input."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.run_folders import MadeRun, written
from scipy import stats

from poolbench.errors import ConfigError
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.abilities import Units
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import BoardSpec, Suite, SuiteInfo
from poolbench_driver.pages.boards.power import PairPower, neighbours, power_table, sentence
from poolbench_driver.pages.text import block_markdown
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run
from poolbench_driver.results import result_table
from poolbench_driver.statistics.mcnemar import mcnemar_power, mcnemar_size
from poolbench_driver.statistics.paired_power import paired_power

#: Four differences with mean 1/2 and standard deviation 1, so that the effect is .5.
HALF = (0.5 - math.sqrt(0.75), 0.5 + math.sqrt(0.75), 0.5 - math.sqrt(0.75), 0.5 + math.sqrt(0.75))
Values = Mapping[str, Sequence[float | None]]


class Plain(Suite[Any, Any, Any]):
    """A suite without a page, answers or units of its own, as docs/extending.md has one."""

    def resolve(self, config: Any, session: Any, model: Any = None) -> Any:
        raise NotImplementedError

    plan = assemble = resolve


INFO = SuiteInfo(
    id="poolbench", summary="", dataset="", revision="", licence="", config=RunConfig, load=Plain,
    board=BoardSpec(ranked=("d1.auroc",), shown=("d1.auroc",), entrant="entrant"),
)  # fmt: skip


def rows_of(values: Values, column: str = "entrant", **columns: Any) -> list[dict[str, Any]]:
    """Return result rows of entrants by their value on each of some concepts; None is a strategy that collapsed."""
    return [
        {
            "suite": "poolbench", "protocol": "corrected", "budget": "demo", "dataset": "planted", "model": "demo",
            "layer": 2, "concept": f"concept-{number}", column: entrant, "metric": "d1.auroc", "metric_version": 1,
            "value": value, "status": "ok" if value is not None else "collapsed", "params": "{}", **columns,
        }
        for entrant, by_concept in values.items()
        for number, value in enumerate(by_concept)
    ]  # fmt: skip


def pairs_of(values: Values, info: SuiteInfo = INFO, planned: float | None = 0.5) -> list[PairPower]:
    tables = {"results": result_table(rows_of(values))}
    return neighbours(info, [MadeRun("run", RunConfig(), tables)], planned=planned)


def test_power_over_concepts_by_hand() -> None:
    """The figures of an effect of .5 are those of statsmodels: power .10808 with 4 pairs, 34 pairs for .8."""
    pair, other = pairs_of({"b": [0.0] * 4, "a": [10 + value for value in HALF], "c": [-1.0] * 4})
    assert (pair.entrant, pair.next, pair.block, pair.n) == ("a", "b", "concept", 4)
    assert (pair.difference, pair.deviation) == (pytest.approx(10.5), pytest.approx(1.0))
    assert pair.power == pytest.approx(0.10808323726269475, abs=1e-9)
    assert (pair.blocks_needed, pair.reason, pair.items) == (34, "", ())
    assert (other.entrant, other.next, other.power, other.blocks_needed) == ("b", "c", 1.0, 2)


def test_power_is_of_the_stated_difference_and_not_of_the_observed_one() -> None:
    """A paired t-test of these has p = .034; the power for what was observed would be .6, and called too few."""
    values = {"a": [0.12, 0.02, 0.10, 0.04, 0.09, -0.01], "b": [0.0] * 6}
    assert stats.ttest_rel(values["a"], values["b"]).pvalue == pytest.approx(0.034, abs=5e-4)
    (pair,) = pairs_of(values, planned=None)
    assert pair.planned == INFO.board.planned_difference == 0.02
    (other,) = pairs_of({"a": [value + 0.3 for value in values["a"]], "b": [0.0] * 6}, planned=None)
    assert other.power == pytest.approx(pair.power) and other.blocks_needed == pair.blocks_needed
    assert pair.power == pytest.approx(paired_power(0.02 / np.std(values["a"], ddof=1), 6))
    with pytest.raises(ConfigError, match=r"a difference of 0 in d1\.auroc cannot be"):
        pairs_of(values, planned=0.0)


def test_cells_are_means_over_layers_and_nulls_are_no_blocks() -> None:
    rows = rows_of({"a": [0.9, 0.8, 0.7, 0.9], "b": [0.8, 0.6, 0.6, None]})
    rows += rows_of({"a": [0.7, 0.8, 0.7, 0.9], "b": [0.4, 0.6, 0.4, 0.9]}, layer=3)
    (pair,) = neighbours(INFO, [MadeRun("run", RunConfig(), {"results": result_table(rows)})])
    assert (pair.entrant, pair.n, pair.difference) == ("a", 3, pytest.approx((0.2 + 0.2 + 0.2) / 3))
    assert (pair.deviation, pair.power, pair.blocks_needed) == (pytest.approx(0, abs=1e-9), 1.0, 2)


@pytest.mark.parametrize(
    ("values", "power", "needed", "reason"),
    [
        ({"a": [0.9], "b": [0.8]}, None, None, "1 concept has a value of both; a paired test needs two"),
        ({"a": [0.9, None], "b": [None, 0.8]}, None, None, "no concept has a value of both"),
        ({"a": [0.9, 0.8], "b": [0.9, 0.8]}, 1.0, 2, ""),
        ({"a": [40.0, -40.0], "b": [0.0, 0.0]}, 0.0252, None, "the difference is too small for 10,000 concepts"),
        ({"a": [0.9, 0.9, 0.2], "b": [0.8, 0.8, 0.7]}, 0.2995, 6, "in favour of the first, the mean difference"),
    ],
)  # fmt: skip
def test_what_has_no_power_or_is_against_the_order_says_so(
    values: Values, power: float | None, needed: int | None, reason: str
) -> None:
    (pair,) = pairs_of(values)
    assert pair.power == (None if power is None else pytest.approx(power, abs=5e-4))
    assert pair.blocks_needed == needed and reason in pair.reason


def test_the_sentence_says_how_many_would() -> None:
    (pair,) = pairs_of({"a": HALF, "b": [0.0] * 4})
    find = "to find a difference of 0.5 in d1.auroc between the first two (a and b; a paired t-test has a power of"
    assert sentence(pair) == f"4 concepts are too few {find} .11): 34 would be enough."
    sure = replace(pair, power=0.934, blocks_needed=3)
    assert sentence(sure) == f"4 concepts are enough {find} .93); a test of ranks needs 6."
    assert sentence(replace(sure, n=6)) == f"6 concepts are enough {find} .93)."
    assert "a power of .79)" in sentence(replace(pair, power=0.7999))
    assert sentence(replace(pair, blocks_needed=None, reason="the difference is too small")) == (
        f"4 concepts are too few to find a difference of 0.5 in d1.auroc between the first two, and so would be 10,000 "
        f"{find.partition('two ')[2]} .11)."
    )
    assert sentence(replace(pair, n=1, deviation=None, power=None, blocks_needed=None)) == (
        "1 concept is too few to compare the first two on d1.auroc (a and b): a paired test needs two."
    )
    (against,) = pairs_of({"a": [0.9, 0.9, 0.2], "b": [0.8, 0.8, 0.7]})
    assert sentence(against).endswith("; the ranks are in favour of the first, the mean difference of the second.")


def test_a_board_of_one_block_is_judged_by_the_units_that_its_metric_is_a_mean_of() -> None:
    class ByWord(Plain):
        def units(self, run: Any) -> Units:
            words = ("sofa", "bed", "chair", "lamp")
            values = {"a": dict(zip(words, HALF, strict=True)), "b": dict.fromkeys(("lamp", *words, "desk"), 0.0)}
            return Units("word", values)

    (pair,) = pairs_of({"a": [0.5], "b": [0.0]}, replace(INFO, load=ByWord))
    assert (pair.block, pair.n, pair.blocks_needed) == ("word", 4, 34)
    assert sentence(pair).startswith("4 words are too few to find a difference of 0.5")


def passages(right: Mapping[str, Sequence[bool]], concept: str = "concept-0", layer: int = 2) -> list[dict[str, Any]]:
    """Return passage scores of strategies that have these passages right."""
    return [
        {"concept": concept, "strategy": name, "layer": layer, "passage_id": str(number), "label": 1}
        | {"score": 1.0 if is_right else -1.0}
        for name, by_passage in right.items()
        for number, is_right in enumerate(by_passage)
    ]


def test_items_by_hand() -> None:
    """(p01, p10) = (.0225, .0025): a power of .8 needs 503 items; as `mcnemar_power` counts, tested by itself."""
    right = {"a": [True] * 391 + [False] + [True] * 8, "b": [False] * 9 + [True] * 391}
    assert [right["a"][n] and not right["b"][n] for n in range(400)].count(True) == 9
    scores = [*passages(right), *passages(right, layer=3), *passages({"a": [True], "b": [True]}, "concept-1")]
    scores += passages({"a": [True, False]}, "concept-2")  # the other has no answers
    values = {"a": [0.9, 0.9, 0.9], "b": [0.8, 0.7, 0.8]}
    results = result_table([*rows_of(values, "strategy"), *rows_of(values, "strategy", layer=3)])
    tables = {"results": results, "passage_scores": pa.Table.from_pylist(scores)}
    run = MadeRun("run", RunConfig(), tables)
    (pair,) = neighbours(SUITES.get("poolbench"), [run])  # the stated difference of .02 is the observed one
    first, second, equal = pair.items
    assert (first.block, first.layer, first.n, first.items_needed) == ("concept-0", "2", 400, 503)
    assert first.difference == pytest.approx(0.02)
    assert first.power == pytest.approx(mcnemar_power(0.0225, 0.0025, 400).power)
    assert (second.layer, second.items_needed) == ("3", 503)
    assert (equal.n, equal.difference, equal.power) == (1, 0.0, 0.0)  # 2 % of discordant items, all of one side
    assert equal.items_needed == mcnemar_size([(0.02, 0.0)])
    assert pair.items_needed == 503
    (text,) = block_markdown(power_table([pair]))
    assert "| a | b | 3 | +0.1333 | 0.058 | 68 | 0 of 3 | 503 |" in text
    assert replace(pair, items=(replace(equal, items_needed=None),)).items_needed == math.inf
    (wider,) = neighbours(SUITES.get("poolbench"), [run], planned=0.01)
    assert wider.items[0].power == pytest.approx(mcnemar_power(0.0175, 0.0075, 400).power)
    with pytest.raises(ConfigError, match="a difference of 2 in"):
        neighbours(SUITES.get("poolbench"), [run], planned=2.0)


def folder_of(output: Path, values: Values, model: str = "demo", **tables: pa.Table) -> Run:
    """Write the folder of a finished run of PoolBench."""
    folder = create_run(output, load_run_config(None, {"preset": "demo", "model": model}))
    return written(folder, {"results": result_table(rows_of(values, "strategy", model=model)), **tables})


def test_the_command_prints_a_sentence_and_a_table_or_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = pa.Table.from_pylist(passages({"A1_mean": [True] * 20, "P1_last_token": [False] * 20}))
    folder_of(tmp_path, {"A1_mean": HALF, "P1_last_token": [0.0] * 4, "P2_bos": [-1.0] * 4}, passage_scores=scores)
    leaderboard(output=tmp_path, power=True, difference=0.5)
    text = capsys.readouterr().out
    assert text.startswith("4 concepts are too few to find a difference of 0.5 in d1.auroc between the first two (A1")
    head = "| entrant | next | concepts | difference | power for 0.5 | concepts needed | items decide | items needed |"
    assert head in text and "| A1_mean | P1_last_token | 4 | +0.5 | 0.108 | 34 | 0 of 1 | 30 |  |" in text
    assert "| P1_last_token | P2_bos | 4 | +1 | 1.000 | 2 |  |  |  |" in text
    leaderboard(output=tmp_path, power=True, difference=0.5, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["entrant"], first["next"], first["n"], first["blocks_needed"]) == ("A1_mean", "P1_last_token", 4, 34)
    (item,) = first["items"]
    assert (item["block"], item["layer"], item["n"], item["items_needed"]) == ("concept-0", "2", 20, 30)
    assert set(second) == {
        "metric", "entrant", "next", "block", "n", "difference", "deviation", "planned", "power", "blocks_needed",
        "reason", "items",
    }  # fmt: skip


def test_several_runs_are_one_board_and_items_are_compared_within_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = ({"a": [True] * 20, "b": [False] * 20}, {"a": [True] * 20, "b": [True] * 20})
    folders = [
        folder_of(tmp_path, {"a": HALF, "b": [0.0] * 4}, model, passage_scores=pa.Table.from_pylist(passages(right)))
        for model, right in zip(("demo", "planted"), sides, strict=True)
    ]
    leaderboard([folder.id for folder in folders], tmp_path, power=True, difference=0.5, as_json=True)
    (pair,) = json.loads(capsys.readouterr().out)
    assert (pair["n"], pair["blocks_needed"]) == (4, 34)
    assert [(item["n"], item["items_needed"]) for item in pair["items"]] == [
        (20, mcnemar_size([(0.75, 0.25)])), (20, mcnemar_size([(0.5, 0.0)])),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "values", [{"A1_mean": HALF}, {"A1_mean": [None] * 2, "P1_last_token": [None] * 2}, {"A1_mean": [0.5, 0.5]}]
)
def test_without_two_entrants_there_is_nothing_to_compare(values: Values, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, values)
    with pytest.raises(ConfigError, match=r"no concept has two entrants with a value of d1\.auroc: measure"):
        leaderboard([folder.id], tmp_path, power=True)
    assert neighbours(SUITES.get("poolbench"), [folder]) == []
