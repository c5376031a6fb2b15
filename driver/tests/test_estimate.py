"""Estimates of runs from recorded rates, against computations by hand."""

from __future__ import annotations

import json

import pytest
from driver.tests.conftest import Driver

from poolbench.config import ModelRef
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import select_strategies
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.estimate import Cluster, Estimate, as_json, estimate
from poolbench_driver.estimate.amounts import Amount, Range, amounts_of, chains, ordered
from poolbench_driver.estimate.rates import Group, Rate, Rates
from poolbench_driver.estimate.text import notes, rows, size
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan
from poolbench_driver.suites.poolbench.plan import make_plan, num_texts

LLAMA = ModelInfo(ModelRef("llama", "somewhere", "r1", "bfloat16"), num_blocks=32, width=4096)
DEMO = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=256)
#: Seconds per unit of work of each kind that a plan of PoolBench has.
SECONDS = {
    "pooler.annotate": 0.05,
    "extractor.extract": 0.04,
    "extractor.calibrate": 0.05,
    "prober.nulls": 1e-6,
    "prober.probe": 0.002,
    "prober.directions": 0.001,
    "steerer.generate": 1e-4,
    "steerer.continue": 2e-4,
    "scorer.train": 0.03,
    "scorer.score": 0.001,
    "scorer.gate": 0.005,
}


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


def test_bytes_equal_those_computed_by_hand() -> None:
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


def estimated(plan: Plan, rates: Rates | None = None, **cluster: object) -> Estimate:
    return estimate(plan, list(plan.tasks.values()), (), rates or Rates(), Cluster(**cluster))  # type: ignore[arg-type]


def recorded(plan: Plan, *, on_gpu: bool) -> Rates:
    """Return rates of every kind of work of a plan: of half to twice the time, and of 100 bytes per unit."""
    rates = {}
    for amount in amounts_of(plan).values():
        assert amount.work is not None
        group = Group(amount.task.kind, amount.work.unit, amount.work.variant, on_gpu)
        rates[group] = Rate(Range.around(SECONDS[amount.task.kind], 0.5, 2.0), Range.around(100.0, 1.0, 1.0), 5)
    return Rates(rates)


def seconds_by_service(plan: Plan) -> dict[str, float]:
    by_service = dict[str, float]()
    for amount in amounts_of(plan).values():
        service = amount.task.service
        assert amount.work is not None
        by_service[service] = by_service.get(service, 0.0) + SECONDS[amount.task.kind] * amount.work.amount
    return by_service


def test_times_are_work_times_rate_over_replicas() -> None:
    plan = plan_of()
    seconds = seconds_by_service(plan)
    by_task = {name: SECONDS[own.task.kind] * own.work.amount for name, own in amounts_of(plan).items() if own.work}
    chain_s = max(chains(plan.tasks.values(), by_task).values())
    assert max(seconds, key=seconds.__getitem__) == "prober" and seconds["prober"] > 2 * chain_s

    one = estimated(plan, recorded(plan, on_gpu=False))
    assert one.elapsed_hours is not None and one.gpu_hours is None and one.money is None
    assert one.elapsed_hours.expected * 3600 == pytest.approx(seconds["prober"])
    assert one.elapsed_hours.low * 3600 == pytest.approx(0.5 * seconds["prober"])
    assert one.elapsed_hours.high * 3600 == pytest.approx(2 * (seconds["prober"] + chain_s))
    probes = next(stage for stage in one.stages if stage.kind == "prober.probe")
    assert probes.hours is not None and probes.num_bytes.expected == pytest.approx(100 * work_of(plan, "prober.probe"))
    assert probes.hours.expected * 3600 == pytest.approx(0.002 * work_of(plan, "prober.probe"))

    many = {"prober": 100, "pooler": 100, "steerer": 100, "scorer": 100, "extractor": 100}
    fast = estimated(plan, recorded(plan, on_gpu=False), named_replicas=many)
    assert fast.elapsed_hours is not None and fast.elapsed_hours.expected * 3600 == pytest.approx(chain_s)

    shared = estimated(plan, recorded(plan, on_gpu=True), gpus=1, named_replicas=many)
    on_gpu_s = sum(seconds[name] for name in ("extractor", "scorer", "steerer"))
    assert on_gpu_s > chain_s
    assert shared.elapsed_hours is not None and shared.elapsed_hours.expected * 3600 == pytest.approx(on_gpu_s)


def test_rates_of_cpus_are_not_those_of_gpus() -> None:
    plan = plan_of()
    on_gpus = estimated(plan, recorded(plan, on_gpu=False), gpus=4)
    assert on_gpus.elapsed_hours is None and "steerer.generate" in on_gpus.reason
    timed = {stage.kind for stage in on_gpus.stages if stage.hours}
    assert timed == {"pooler.annotate", "prober.directions", "prober.nulls", "prober.probe"}


def test_money_is_gpu_hours_at_the_price() -> None:
    plan = plan_of()
    found = as_json(estimated(plan, recorded(plan, on_gpu=True), gpus=4, price_per_gpu_hour=2.5))
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
    plan = plan_of()
    found = estimated(plan, recorded(plan, on_gpu=True), gpus=4, price_per_gpu_hour=2.5)
    shown = {row["stage"]: row for row in rows(found)}
    assert " to " in shown["steer (D2, D3)"]["GPU hours"]
    assert "money for all GPUs" in "\n".join(notes(found)) and "build passages" in shown
    assert (size(999), size(1234567), size(2e15)) == ("999 B", "1.23 MB", "2 PB")


def test_a_dry_run_prints_the_estimate(driver: Driver, environment: dict[str, str]) -> None:
    arguments = ("run", "--preset", "demo", "--concepts", "contrast", "--dry-run", "--gpus", "2")
    text = driver(environment, *arguments, "--price-per-gpu-hour", "3")
    assert text.returncode == 0, text.stderr
    assert "tasks to do" in text.stdout and "from start to end: unknown" in text.stdout
    assert "has not executed this work yet" in text.stdout
    found = json.loads(driver(environment, *arguments, "--display", "json", "--replicas", "prober=3").stdout)
    assert found["tasks"] == found["tasks_to_do"] > 10
    assert found["estimate"]["replicas"]["prober"] == 3
    total = found["estimate"]["total"]
    assert total["gpu_hours"] is None and total["bytes"]["expected"] > 0 and "steerer.generate" in total["reason"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--gpus", "-1"), "--gpus -1"),
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
