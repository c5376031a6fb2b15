"""Strategies with parameters in a run: plan, keys, rows and boards; what has none keeps its keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poolbench.config import ModelRef
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan

MODEL = ModelInfo(ModelRef("demo", "somewhere", "local-0123", "float32"), num_blocks=6, width=256)
NAMED = ["W2_last_k", "W2_last_k:k=32", "W2_last_k:k=8"]


def plan_of(*strategies: str, **settings: Any) -> Plan:
    config, specs = resolve_names(load_run_config(None, {"preset": "demo", "strategies": strategies, **settings}))
    return make_plan(Scope(config, MODEL, tuple(specs)))


def test_each_combination_has_keys_of_its_own_and_the_others_keep_theirs() -> None:
    alone, beside = plan_of("W2_last_k"), plan_of(*NAMED)
    assert alone.keys < beside.keys
    vectors = beside.vectors.concepts["contrast"].vectors
    keys = {of.strategy: key for of, key in vectors.items() if (of.split, of.layer) == ("train", 5)}
    assert set(keys) == {*NAMED, "A1_mean"} and len(set(keys.values())) == 4
    texts = beside.steering.texts.concepts["contrast"].texts
    assert {*NAMED} < set(texts) and len({texts[name].texts for name in NAMED}) == 3


def test_services_read_the_parameters_from_the_task() -> None:
    asked = {
        each["id"]: each["params"]
        for task in plan_of(*NAMED).tasks.values()
        if task.kind == "extractor.extract"
        for each in task.params["strategies"]
    }
    assert asked == {"W2_last_k": {"k": 16}, "W2_last_k:k=32": {"k": 32}, "W2_last_k:k=8": {"k": 8}, "A1_mean": {}}


def test_the_same_strategies_in_another_spelling_are_the_same_run() -> None:
    settings = [{"preset": "demo", "strategies": [name]} for name in ("W2_last_k:k= 16", "W2_last_k")]
    first, second = (resolve_names(load_run_config(None, each))[0] for each in settings)
    assert first == second and first.config_hash() == second.config_hash()


def test_each_combination_is_a_row_of_results_and_boards(steered_in: Any, tmp_path: Path) -> None:
    made = steered_in(tmp_path, concepts=["contrast", "hedging"], strategies=tuple(NAMED)).write(
        lambda key, opening, strength, scorer: 0.2 + 0.01 * opening + (0 if "null" in key else strength)
    )
    rows = assemble(made.plan, made.artifacts, {}, "run-1")["results"].to_pylist()
    for metric in ("d1.auroc", "d2.scp", "d2.best_gain"):
        found = [row["strategy"] for row in rows if row["metric"] == metric and row["concept"] == "contrast"]
        assert sorted(found) == sorted(NAMED), metric
    assert len({row["cell_id"] for row in rows}) == len(rows)
    ranked = {row["strategy"] for row in rows if row["metric"] == "rank.mean" and '"d1.auroc"' in row["params"]}
    assert ranked == set(NAMED)
    (family,) = build_ranks(
        [{**row, "params": row["params"] or json.dumps({})} for row in rows], "d1.auroc"
    ).strategy_families
    assert (family.family, sorted(family.strategies)) == ("window", sorted(NAMED))


def test_strategies_that_need_the_whole_corpus_may_have_parameters() -> None:
    plan = plan_of("S4_sif", "S4_sif:a=0.01", "A7_random:share=0.25", layers=[5], metrics=["d1"])
    components = {cell.strategy for cell in plan.components.keys}
    assert components == {"S4_sif", "S4_sif:a=0.01"} and len(set(plan.components.keys.values())) == 2


@pytest.mark.parametrize("suffix", ["", ":k=32"])
def test_a_strategy_named_twice_runs_once(suffix: str) -> None:
    assert [spec.id for spec in plan_of(f"W2_last_k{suffix}", f"W2_last_k{suffix}").scope.strategies] == [
        f"W2_last_k{suffix}"
    ]
