"""Estimates of runs by the model, against computations by hand."""

from __future__ import annotations

import json

import pytest
from driver.tests.conftest import Driver

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import select_strategies
from poolbench.steps import SERVICE_STEPS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.estimate import Cluster, Estimate, as_json, estimate
from poolbench_driver.estimate.amounts import Amount, amounts_of
from poolbench_driver.estimate.flops import FORMULAS, Model
from poolbench_driver.estimate.hardware import GPUS
from poolbench_driver.estimate.order import ordered
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.estimate.schedule import Capacity, chains, schedule
from poolbench_driver.estimate.text import notes, rows, size
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan, num_texts

LLAMA = ModelInfo(ModelRef("llama", "somewhere", "r1", "bfloat16"), num_blocks=32, width=4096)
DEMO = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=256)
H100 = GPUS["h100"]


def plan_of(model: ModelInfo = LLAMA, **settings: object) -> Plan:
    corpus = {"source": "planted", "window": [300, 500]}
    base = {"preset": "card", "model": "demo", "protocol": "corrected", "scorer_base": "minilm", "corpus": corpus}
    given = {**base, "concepts": ["contrast", "hedging"], **settings}
    return make_plan(Scope(load_run_config(None, given), model, tuple(select_strategies())))


def amounts(plan: Plan, kind: str) -> list[Amount]:
    return [amount for amount in amounts_of(plan).values() if amount.task.kind == kind]


def work_of(plan: Plan, kind: str) -> float:
    return sum(amount.work.amount for amount in amounts(plan, kind) if amount.work)


def test_a_plan_knows_its_work_before_it_runs() -> None:
    plan = plan_of()
    budget, counted = plan.scope.config.budget, num_texts(plan.scope)
    texts = sum(counted.values())
    assert work_of(plan, "steerer.generate") == texts * budget.max_tokens
    neighbours = len(plan.scope.scored_concepts) - 2
    assert work_of(plan, "extractor.extract") == 2 * 2000 + neighbours * 1400
    assert work_of(plan, "prober.probe") == 2 * 2000 * 3 * len(plan.scope.strategies)
    scorers = len(plan.scope.scored_concepts)
    assert work_of(plan, "scorer.train") == scorers * 1400
    assert work_of(plan, "steerer.continue") == scorers * 100 * 200
    per_concept = {name: len(plan.scope.scorers_of(own)) for name, own in zip("ab", plan.scope.concepts, strict=True)}
    of_one = (counted["steered"] + counted["null"]) // 2
    assert work_of(plan, "scorer.score") == sum(per_concept.values()) * of_one + scorers * counted["unsteered"]
    assert all(amount.work for amount in amounts_of(plan).values())


def test_times_of_the_model_equal_those_computed_by_hand() -> None:
    plan = plan_of()
    model = Model(plan.scope, H100)
    # 12 x 32 x 4096^2 parameters; a step takes 14.8 ms and 12.88 GB / 3.35 TB/s; 240 texts are one batch.
    parameters, texts = 6.442450944e9, 2 * 12 * 10
    decoding_s = 200 * (0.0148 + 2 * parameters / 3.35e12)
    likelihood_s = 2 * parameters * texts * 212 / (989e12 * 0.34)
    whole = next(amount for amount in amounts(plan, "steerer.generate") if len(amount.task.outputs) == 4)
    found = model.seconds(whole)
    assert found.expected == pytest.approx(decoding_s + likelihood_s, rel=1e-9) == pytest.approx(5.679, abs=1e-3)
    assert (found.low, found.high) == pytest.approx((0.6 * found.expected, 2 * found.expected))
    # 1,400 passages of 400 words; the last block; the card's strategies need gradients.
    train = max(amounts(plan, "extractor.extract"), key=lambda amount: amount.work or ())
    forward_s = 2 * parameters * 1400 * 400 * 1.25 / (989e12 * 0.45)
    assert model.seconds(train).expected == pytest.approx(2.75 * forward_s, rel=1e-9)
    annotated = max(amounts(plan, "pooler.annotate"), key=lambda amount: amount.work or ())
    assert model.seconds(annotated).expected == pytest.approx(1400 * 400 / 7500)
    probed = amounts(plan, "prober.probe")[0]
    cells = sum(role.startswith("measures/") for role in probed.task.outputs)
    fit_s = 2 * 1120**2 * (4096 + 200 * 24) / 53e9  # five of them in 2.1 s
    assert 5 * fit_s == pytest.approx(2.1, rel=0.01)
    assert model.seconds(probed).expected == pytest.approx(cells * (0.4 + 9 * fit_s))


def test_every_step_has_a_formula_or_is_named_as_one_without() -> None:
    assert FORMULAS.keys() == SERVICE_STEPS.keys()
    without = {"pooler.pool", "prober.task", "extractor.features", "extractor.recovered", "prober.sparse"}
    assert {kind for kind, formula in FORMULAS.items() if formula is None} == without


def test_bytes_of_the_model_equal_those_computed_by_hand() -> None:
    plan = plan_of()
    train = max(amounts(plan, "extractor.extract"), key=lambda amount: amount.work or ())
    expected = len(train.task.outputs) * (2000 + 1400 * (4 * 4096 + 16))
    assert train.num_bytes.expected == pytest.approx(expected)
    kept = plan_of(keep_activations=True)
    train = max(amounts(kept, "extractor.extract"), key=lambda amount: amount.work or ())
    states = len(kept.scope.layers_with_steering) * 1400 * 500 * 4096 * 2
    assert train.num_bytes.expected == pytest.approx(expected + states)


def task(name: str, kind: str, *inputs: str) -> Task:
    return Task(
        task_id=name, kind=kind, inputs={f"x{n}": key for n, key in enumerate(inputs)}, outputs={"y": f"of.{name}"}
    )


def test_chains_are_as_long_as_what_waits_for_a_task() -> None:
    tasks = [task("vectors", "extractor.extract"), task("long", "steerer.generate", "of.vectors")]
    tasks += [task("short", "prober.probe", "of.vectors"), task("last", "scorer.score", "of.long", "of.short")]
    found = chains(tasks, {"vectors": 10.0, "long": 4.0, "short": 1.0, "last": 2.0})
    assert found == {"vectors": 16.0, "long": 6.0, "short": 3.0, "last": 2.0}


def test_tasks_are_sent_by_the_length_of_their_chain_and_then_by_their_work() -> None:
    plan, made = plan_of(), set[str]()
    found, layer = ordered(plan), plan.scope.steering_layer
    assert set(found.tasks) == set(plan.tasks) and list(found.tasks) != list(plan.tasks)
    for each in found.tasks.values():
        assert made.issuperset(key for key in each.inputs.values() if key in plan.producers)
        made |= set(each.outputs.values())
    probes = [each for each in found.tasks.values() if each.kind == "prober.probe"]
    steers = [any(role.endswith(f"/{layer}") for role in each.outputs) for each in probes]
    assert steers == sorted(steers, reverse=True) and len(set(steers)) == 2
    extracted = [amount.work.amount for amount in amounts(found, "extractor.extract")[:4] if amount.work]
    assert extracted == [1400.0, 1400.0, 600.0, 600.0]  # train passages, then test, of the measured concepts


@pytest.mark.parametrize(
    ("capacity", "end_s"),
    [
        (Capacity.of(0), 10.0 + 4.0 + 4.0 + 1.0),  # one steerer: both texts after the vectors, then the scores
        (Capacity.of(0, {"steerer": 2}), 10.0 + 4.0 + 1.0),
        (Capacity.of(1, {"steerer": 2}), 10.0 + 4.0 + 4.0 + 1.0),  # two steerers share one GPU
        (Capacity.of(4), 10.0 + 4.0 + 1.0),
    ],
)
def test_a_schedule_follows_inputs_replicas_and_gpus(capacity: Capacity, end_s: float) -> None:
    tasks = [
        task("v", "extractor.extract"),
        task("a", "steerer.generate", "of.v"),
        task("b", "steerer.generate", "of.v", "somewhere.else"),
        task("s", "scorer.score", "of.a", "of.b"),
    ]
    seconds = {"v": 10.0, "a": 4.0, "b": 4.0, "s": 1.0}
    made = schedule(tasks, seconds, capacity)
    assert made.end_s == pytest.approx(end_s)
    assert made.starts["a"] == 10.0 and made.ends["s"] == end_s
    resumed = schedule(tasks[1:], seconds, capacity, present={"of.v"})
    assert resumed.end_s == pytest.approx(end_s - 10.0)
    waiting = schedule(tasks, seconds, capacity, start_s=lambda service: 100.0 if service == "steerer" else 0.0)
    assert waiting.starts["a"] == 110.0


def estimated(plan: Plan, rates: Rates | None = None, **cluster: object) -> Estimate:
    return estimate(plan, list(plan.tasks.values()), (), rates or Rates(), Cluster(**cluster))  # type: ignore[arg-type]


def test_money_is_gpu_hours_at_the_price() -> None:
    found = as_json(estimated(plan_of(), gpus=4, gpu=H100, price_per_gpu_hour=2.5))
    whole = found["total"]
    on_gpus = [stage for stage in found["stages"] if stage["gpu_hours"]]
    assert {stage["kind"].partition(".")[0] for stage in on_gpus} == {"extractor", "steerer", "scorer"}
    for stage in on_gpus:
        for bound in ("expected", "low", "high"):
            assert stage["money"][bound] == pytest.approx(2.5 * stage["gpu_hours"][bound], rel=1e-3)
    assert whole["gpu_hours"]["expected"] == pytest.approx(
        sum(stage["gpu_hours"]["expected"] for stage in on_gpus), rel=1e-3
    )
    assert whole["held_gpu_hours"]["expected"] == pytest.approx(4 * whole["elapsed_hours"]["expected"], rel=1e-3)
    assert whole["money"]["expected"] == pytest.approx(2.5 * whole["held_gpu_hours"]["expected"], rel=1e-3)
    assert whole["held_gpu_hours"]["expected"] > whole["gpu_hours"]["expected"]
    assert whole["elapsed_hours"]["low"] < whole["elapsed_hours"]["expected"] < whole["elapsed_hours"]["high"]


def test_a_text_shows_each_stage_with_its_range() -> None:
    found = estimated(plan_of(), gpus=4, gpu=H100, price_per_gpu_hour=2.5)
    shown = {row["stage"]: row for row in rows(found)}
    assert shown["steer (D2, D3)"]["from"] == "model" and " to " in shown["steer (D2, D3)"]["GPU hours"]
    assert "money for all GPUs" in "\n".join(notes(found)) and "build passages" in shown
    assert (size(999), size(1234567), size(2e15)) == ("999 B", "1.23 MB", "2 PB")


def test_a_dry_run_prints_the_estimate(driver: Driver, environment: dict[str, str]) -> None:
    arguments = ("run", "--preset", "demo", "--concepts", "contrast", "--dry-run", "--gpus", "2")
    text = driver(environment, *arguments, "--price-per-gpu-hour", "3")
    assert text.returncode == 0, text.stderr
    assert "tasks to do" in text.stdout and "from start to end" in text.stdout and "model" in text.stdout
    found = json.loads(driver(environment, *arguments, "--display", "json", "--replicas", "prober=3").stdout)
    assert found["tasks"] == found["tasks_to_do"] > 10
    assert found["estimate"]["replicas"]["prober"] == 3 and found["estimate"]["gpu"] == "h100"
    assert found["estimate"]["total"]["gpu_hours"]["expected"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--gpus", "-1"), "--gpus -1"),
        (("--gpus", "1", "--gpu-type", "h10"), "did you mean h100"),
        (("--price-per-gpu-hour", "-2"), "give a price of 0 or more"),
        (("--replicas", "prober"), "prober=<number>"),
        (("--replicas", "prober=0"), "a number from 1"),
        (("--replicas", "porber=2"), "did you mean prober"),
    ],
)
def test_wrong_options_are_refused(
    driver: Driver, environment: dict[str, str], arguments: tuple[str, ...], expected: str
) -> None:
    found = driver(environment, "run", "--preset", "demo", "--dry-run", *arguments)
    assert found.returncode == 2 and expected in found.stderr
