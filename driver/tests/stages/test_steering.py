"""Options and parameters of strategies and steering, from configuration to rows."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from driver.tests.run_folders import rows_of

from poolbench.concepts import CONCEPTS
from poolbench.config import ModelRef, asset_path
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES, strategies_of
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.boards.ranks import build_ranks
from poolbench_driver.results import RESULT_SCHEMA
from poolbench_driver.stages.plan import make_plan, num_texts
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.stages.stage import Plan


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    """The target's score rises with strength by .8, its neighbours' by .2; null directions do nothing."""
    slope = 0.0 if "null" in key else 0.8 if scorer == "contrast" else 0.2
    return 0.1 + 0.01 * opening + slope * strength


def params_of(plan: Plan, kind: str = "steerer.generate") -> list[dict[str, Any]]:
    return [task.params for task in plan.tasks.values() if task.kind == kind]


def outputs_of(plan: Plan, kind: str) -> list[str]:
    return [key for task in plan.tasks.values() if task.kind == kind for key in task.outputs.values()]


@pytest.mark.parametrize(
    ("steering", "nulls_move"),
    [
        ({"direction": "C2"}, False),
        ({"positions": "all"}, True),
        ({"temperature": 0.7}, True),
        ({"temperature": 0.7, "num_samples": 2}, True),
    ],
    ids=str,
)
def test_each_option_moves_the_keys_of_the_texts_it_changes(
    steered: Any, steering: dict[str, Any], nulls_move: bool
) -> None:
    plans = steered().plan, steered(steering=steering).plan
    before, after = (dict(plan.steering.texts.concepts["contrast"].texts) for plan in plans)
    assert (before.pop("nulls") != after.pop("nulls")) is nulls_move
    assert not set(before.values()) & set(after.values())
    assert outputs_of(plans[0], "prober.probe") == outputs_of(plans[1], "prober.probe")


def test_scorers_follow_the_rule_that_labelled_the_corpus() -> None:
    model = ModelInfo(ModelRef("tiny", "nowhere", "any", "float32"), num_blocks=6, width=16)
    names = ["hedging", "bureaucratic"]  # labelled by words, and by source

    def rules_of(**settings: Any) -> dict[str, list[int | None]]:
        config = load_run_config(None, {"preset": "small", "model": "tiny", "concepts": names, **settings})
        plan = make_plan(Scope(config, model, tuple(strategies_of("card"))))
        tasks = {key: task for task in plan.tasks.values() for key in task.outputs.values()}
        scorers = plan.steering.scorers.concepts
        return {
            name: [tasks[key].params.get("rule") for key in (scorers[name].scorer, scorers[name].gate)]
            for name in names
        }

    none = [None, None]
    assert rules_of(corpus={"source": str(asset_path("real_corpus"))}) == {"hedging": [1, 1], "bureaucratic": none}
    assert rules_of(corpus={"source": "planted"}) == {"hedging": none, "bureaucratic": none}


def test_rows_of_sampled_texts_say_so_and_average_the_samples(steered: Any) -> None:
    made = steered(steering={"temperature": 0.7, "num_samples": 3}, seed=5).write(rising)
    tables = assemble(made.plan, made.artifacts, {}, "run")
    (row,) = rows_of(tables, metric="d2.scp_1", strategy="A1_mean")
    assert json.loads(row["params"]) == {"temperature": 0.7, "num_samples": 3}
    assert (row["n"], row["seed"], row["value"]) == (6, 5, pytest.approx(0.8 * 0.125))
    greedy = steered().write(rising)
    greedy_tables = assemble(greedy.plan, greedy.artifacts, {}, "run")
    assert row["cell_id"] != rows_of(greedy_tables, metric="d2.scp_1")[0]["cell_id"]


def test_another_direction_steers_and_is_compared_with_the_neighbours(steered: Any) -> None:
    made = steered(steering={"direction": "C2"}).write(rising)
    assert all(
        params["direction_ids"] in (["C2"], "all") or not params["strengths"][0] for params in params_of(made.plan)
    )
    neighbours = [task for task in made.plan.tasks.values() if task.kind == "prober.directions"]
    assert {task.params["concept"] for task in neighbours} == {"causation", "negation_density"}
    tables = assemble(made.plan, made.artifacts, {}, "run")
    steering = [r for r in tables["results"].to_pylist() if r["metric"].startswith(("d2.", "d3."))]
    assert {row["direction"] for row in steering} == {"C2"}
    assert {row["status"] for row in steering if row["metric"].startswith("d3.rep")} == {"ok"}


def test_a_direction_that_could_not_be_computed_is_the_status_of_its_rows(steered: Any) -> None:
    made = steered(steering={"direction": "C3"}).write(rising)
    tables = assemble(made.plan, made.artifacts, {}, "run")
    assert {row["status"] for row in rows_of(tables, metric="d2.scp")} == {"failed"}
    assert "no direction C3" in rows_of(tables, metric="d2.scp")[0]["reason"]


#: The published definitions, on texts of the corrected protocol.
PUBLISHED = {
    "protocol": "published",
    "sinks": "exclude",
    "include_bos": False,
    "steering": {"positions": "generated"},
    "budget": {"alpha_unit": "residual_norm", "opening_set": "neutral-54"},
}
WHOLE = {"reading": "whole"}


def test_published_rows_have_a_table_of_their_own_and_change_no_other(steered: Any) -> None:
    corrected = steered(steering=WHOLE).write(rising)
    both = steered(**PUBLISHED).write(rising)
    added = [task for name, task in both.plan.tasks.items() if name not in corrected.plan.tasks]
    assert {task.kind for task in added} == {"prober.probe"}  # from the same vectors and texts
    before, after = (assemble(made.plan, made.artifacts, {}, "run") for made in (corrected, both))
    same = [name for name in RESULT_SCHEMA.names if name not in ("config_hash", "created_at")]
    assert after["results"].select(same).equals(before["results"].select(same))  # ranks included
    assert set(after) - set(before) == {"published"}
    published = after["published"]
    assert published.schema == RESULT_SCHEMA
    assert set(published["protocol"].to_pylist()) == {"published"}
    found = {
        (row["metric"], json.loads(row["params"]).get("scp")): row["value"]
        for row in published.to_pylist()
        if row["strategy"] == "A1_mean" and row["metric"] != "d1.auroc"
    }
    assert found == {
        ("d2.scp", None): pytest.approx(1.0),
        ("d2.scp_1", None): pytest.approx(0.1),
        ("d3.ld", "d2.scp"): pytest.approx(0.0),
        ("d3.lc", "d2.scp"): pytest.approx(0.0),
        ("d3.ld", "d2.scp_1"): pytest.approx(0.75),
        ("d3.lc", "d2.scp_1"): pytest.approx(0.75),
    }
    ids = published["cell_id"].to_pylist() + after["results"]["cell_id"].to_pylist()
    assert len(ids) == len(set(ids))


def test_published_rows_take_scorers_as_they_are(steered: Any) -> None:
    made = steered(**PUBLISHED).write(rising, gate=0.0)
    tables = assemble(made.plan, made.artifacts, {}, "run")
    assert {row["status"] for row in rows_of(tables, metric="d3.ld")} == {"scorer_invalid"}
    published = tables["published"].to_pylist()
    assert {row["status"] for row in published if row["metric"] != "d1.auroc"} == {"ok"}


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({"steering": {"temperature": 0.0, "num_samples": 2}}, ConfigError, "num_samples 2 needs a temperature above"),
        ({"steering": {"temperature": -1}}, ConfigError, "steering.temperature"),
        ({"steering": {"temperature": float("nan")}}, ConfigError, "steering.temperature"),
        ({"steering": {"positons": "all"}}, ConfigError, "did you mean steering.positions"),
        ({"budget": {"alpha_unit": "norms"}}, ConfigError, "budget.alpha_unit"),
        ({"budget": {"opening_set": "published-11"}}, UnknownNameError, "did you mean published-10"),
        ({"budget": {"opening_set": "published-10", "num_openings": 12}}, CorpusError, "has 10 openings; received"),
    ],
    ids=str,
)
def test_wrong_options_are_named_before_anything_runs(settings: dict[str, Any], error: type, expected: str) -> None:
    with pytest.raises(error, match=expected):
        config = load_run_config(None, {"preset": "demo", **settings})
        model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=4)
        make_plan(Scope(config, model, [STRATEGIES.get("A1_mean")]))


@pytest.mark.parametrize(
    ("preset", "steered_texts", "nulls", "unsteered"),
    [
        ("card", 17 * 19 * 12 * 10, 17 * 20 * 3 * 10, 10),  # 38,760: the published number
        ("full", 17 * 19 * (12 * 25 + 4 * 25), 17 * 20 * 3 * 50, 50),  # half of the openings at four strengths
    ],
)
def test_the_card_and_full_budgets_generate_what_they_say(
    preset: str, steered_texts: int, nulls: int, unsteered: int
) -> None:
    everything = [concept.id for concept in CONCEPTS.all()]
    settings = {"preset": preset, "model": "demo", "concepts": everything, "corpus": {"source": "planted"}}
    config = load_run_config(None, settings)
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=32, width=4)
    plan = make_plan(Scope(config, model, strategies_of("card")))
    assert num_texts(plan.scope) == {"steered": steered_texts, "null": nulls, "unsteered": unsteered}
    assert (steered_texts, config.budget.max_tokens) == ({"card": 38_760, "full": 129_200}[preset], 200)
    counted: Counter[str] = Counter()
    for task in plan.tasks.values():
        names = [role.partition("/")[2] for role in task.outputs if role.startswith("texts/")]
        if task.kind in ("steerer.generate", "steerer.complete"):
            openings = plan.local[task.inputs["prompts"]].build().num_rows
            strengths = len(task.params["strengths"]) + (task.kind == "steerer.complete")
            for name in names:
                counted[name] += (config.budget.num_nulls if name == "nulls" else 1) * strengths * openings
    assert (counted.pop("nulls"), counted.pop("unsteered"), counted.total()) == (nulls, unsteered, steered_texts)


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
    ranks = build_ranks([{**row, "params": row["params"] or json.dumps({})} for row in rows], "d1.auroc")
    (family,) = ranks.strategy_families
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
