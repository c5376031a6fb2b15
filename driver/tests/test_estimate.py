"""Estimates of runs from recorded rates, by hand, and of a run whose like was executed before."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.conftest import Driver
from driver.tests.loop_bench import FAST, Consumer, Notes, consuming
from tests.servers.quiet import TasksOnly

from poolbench.config import ModelRef
from poolbench.contracts.tables import FLUENCY, TEXTS, table_from_rows, vector_column
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.contracts.work import Shape
from poolbench.pooling.registry import STRATEGIES, select_strategies
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.steps import SERVICE_STEPS, scorer, steerer
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.estimate import ClusterSize, Estimate, as_json, estimate, read_rates
from poolbench_driver.estimate.amounts import Amount, Range, amounts_of, chains, makespan_s, ordered
from poolbench_driver.estimate.estimate import estimate_tasks
from poolbench_driver.estimate.rates import Rate, Rates, TaskGroup
from poolbench_driver.estimate.text import notes, rows, size
from poolbench_driver.loop import RunLoop
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import make_plan, num_texts
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, PlannedWork

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
    "steerer.complete": 1e-4,
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
    assert work_of(plan, "steerer.generate") + work_of(plan, "steerer.complete") == texts * budget.max_tokens
    neighbours = len(plan.scope.scored_concepts) - 2
    assert work_of(plan, "extractor.extract") == 2 * 2000 + neighbours * 1400
    assert work_of(plan, "prober.probe") == 2 * 2000 * 3 * len(plan.scope.strategies)
    scorers = len(plan.scope.scored_concepts)
    assert work_of(plan, "scorer.train") == scorers * 1400
    assert work_of(plan, "steerer.continue") == scorers * 100 * 200
    per_concept = {name: len(plan.scope.scorers_of(own)) for name, own in zip("ab", plan.scope.concepts, strict=True)}
    of_one = (counted["steered"] + counted["null"]) // 2
    unsteered = (scorers + len(per_concept)) * counted["unsteered"]  # once more by each concept's, to choose a strength
    assert work_of(plan, "scorer.score") == sum(per_concept.values()) * of_one + unsteered
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
    return estimate(plan, list(plan.tasks.values()), (), rates or Rates(), ClusterSize(**cluster))  # type: ignore[arg-type]


def recorded(plan: Plan, *, on_gpu: bool) -> Rates:
    """Return rates of every kind of work of a plan: of half to twice the time, and of 100 bytes per unit."""
    rates = {}
    for amount in amounts_of(plan).values():
        assert amount.work is not None
        group = TaskGroup(amount.task.kind, amount.work.unit, amount.work.variant, on_gpu)
        rates[group] = Rate(Range.around(SECONDS[amount.task.kind], 0.5, 2.0), Range.around(100.0, 1.0, 1.0), 5)
    return Rates(rates)


def seconds_by_service(plan: Plan) -> dict[str, float]:
    by_service = dict[str, float]()
    for amount in amounts_of(plan).values():
        service = amount.task.service
        assert amount.work is not None
        by_service[service] = by_service.get(service, 0.0) + SECONDS[amount.task.kind] * amount.work.amount
    return by_service


def test_the_end_is_that_of_tasks_in_their_order() -> None:
    """One replica each: the pooler works until 2 and 6, the prober from 2 to 5 and from 6 to 7."""
    tasks = [
        task("a1", "pooler.annotate"), task("a2", "prober.probe", "of.a1"),
        task("b1", "pooler.annotate"), task("b2", "prober.probe", "of.b1"),
    ]  # fmt: skip
    seconds = dict(zip((one.task_id for one in tasks), (2.0, 3.0, 4.0, 1.0), strict=True))
    one_each = {"pooler": 1, "prober": 1}
    assert makespan_s(tasks, seconds, one_each) == 7
    assert makespan_s(tasks, seconds, one_each | {"pooler": 2}) == 6  # the second probe waits for the first
    assert makespan_s(tasks[1:], seconds, one_each) == 5  # the first annotation is there
    assert makespan_s([], seconds, one_each) == 0


def test_times_are_work_times_rate_over_replicas() -> None:
    plan = plan_of()
    seconds = seconds_by_service(plan)
    by_task = {name: SECONDS[own.task.kind] * own.work.amount for name, own in amounts_of(plan).items() if own.work}
    chain_s = max(chains(plan.tasks.values(), by_task).values())
    assert max(seconds, key=seconds.__getitem__) == "prober" and seconds["prober"] > 2 * chain_s

    one = estimated(plan, recorded(plan, on_gpu=False))
    assert one.elapsed_hours is not None and one.gpu_hours is None and one.money is None
    assert seconds["prober"] <= one.elapsed_hours.expected * 3600 <= sum(seconds.values())
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


def test_a_dry_run_prints_the_estimate(cli: Driver) -> None:
    arguments = ("run", "--preset", "demo", "--concepts", "contrast", "--dry-run", "--gpus", "2")
    text = cli(*arguments, "--price-per-gpu-hour", "3")
    assert text.returncode == 0, text.stderr
    assert "tasks to do" in text.stdout and "from start to end: unknown" in text.stdout
    assert "has not executed this work yet" in text.stdout
    found = json.loads(cli(*arguments, "--display", "json", "--replicas", "prober=3").stdout)
    assert found["tasks"] == found["tasks_to_do"] > 10
    assert found["estimate"]["replicas"]["prober"] == 3
    total = found["estimate"]["total"]
    assert total["gpu_hours"] is None and total["bytes"]["expected"] > 0 and "steerer.generate" in total["reason"]


def test_a_dry_run_of_a_search_counts_necessity_at_the_last_layer(cli: Driver, tmp_path: Path) -> None:
    judge = ("--judge", "http://127.0.0.1:1/v1", "--set", "budget.num_openings=8")
    done = cli("find", "contrast", "--output", str(tmp_path / "found"), "--dry-run", *judge)
    assert done.returncode == 0, done.stderr
    tasks = [int(line.split(" of ")[0]) for line in done.stdout.splitlines() if line.endswith("tasks to do")]
    assert len(tasks) == 4 and tasks[3] == tasks[2] + 5  # three of texts, their scores, and the probes
    assert "damage, side effects and what else" in done.stderr
    assert "Ratings to ask for: about 8." in done.stderr


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
def test_wrong_options_are_refused(cli: Driver, arguments: tuple[str, ...], expected: str) -> None:
    found = cli("run", "--preset", "demo", "--dry-run", *arguments)
    assert found.returncode == 2 and expected in found.stderr


class Recorded:
    """Artifacts that tasks left behind, with the times that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = Artifacts(FolderStore(folder))
        self.keys: list[str] = []

    def add(self, done: Task, seconds: float, amount: float, unit: str, variant: str, **more: object) -> None:
        """Write each output of a task; the first one carries the time, as workers write them."""
        for number, key in enumerate(done.outputs.values()):
            producer = {
                "kind": done.kind,
                "task_id": done.task_id,
                "accelerator": "",
                "work": {"amount": amount, "unit": unit, "variant": variant},
                "num_outputs": len(done.outputs),
                "wall_s": 0.0 if number else seconds,
                **more,
            }
            self.artifacts.write_table(key, pa.table({"x": [1]}), producer=producer)
            self.keys.append(key)

    def rates(self, *kinds: str) -> Rates:
        return read_rates(self.artifacts, self.keys, kinds)


@pytest.fixture
def earlier(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "earlier")


def done(number: int, outputs: int = 2, kind: str = "steerer.generate") -> Task:
    return Task(kind=kind, outputs={f"y{n}": f"{kind}.{number:04d}{n:04d}" for n in range(outputs)})


def test_rates_are_sums_of_times_over_sums_of_work(earlier: Recorded) -> None:
    for number, seconds in enumerate([2.0, 1.0, 1.2, 1.0, 1.0, 0.8, 1.0, 1.0, 1.0, 3.0]):
        earlier.add(done(number), seconds, 100.0, "tokens", "demo")
    rate = earlier.rates("steerer.generate").get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert rate is not None and rate.num_tasks == 10
    assert rate.seconds.expected == pytest.approx(13.0 / 1000)
    assert rate.seconds.low == pytest.approx(0.01) and rate.seconds.high == pytest.approx(0.02)
    assert rate.num_bytes.expected > 0


def test_rates_of_other_models_gpus_versions_and_damaged_manifests_do_not_count(earlier: Recorded) -> None:
    earlier.add(done(1), 50.0, 100.0, "tokens", "another model")
    earlier.add(done(2), 1.0, 100.0, "tokens", "demo", accelerator="NVIDIA H100")
    earlier.add(done(3), 1.0, 100.0, "tokens", "demo", work=None)
    earlier.add(done(4), 1.0, -5.0, "tokens", "demo")
    earlier.add(done(5), 1.0, 100.0, "tokens", "demo")
    broken = next(Path(earlier.artifacts.store.uri.removeprefix("file://")).glob("artifacts/*00050000/manifest.json"))
    broken.write_text("{")
    rates = earlier.rates("steerer.generate", "extractor.extract")
    on_cpu = rates.get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert on_cpu is not None and on_cpu.num_tasks == 1 and on_cpu.seconds.expected == 0  # the part that is left
    on_gpu = rates.get("steerer.generate", "tokens", "demo", on_gpu=True)
    assert on_gpu is not None and on_gpu.seconds == pytest.approx((0.01, 0.005, 0.02))


def test_a_sample_of_manifests_gives_the_same_rate(earlier: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        earlier.add(done(number, outputs=5), 2.0, 100.0, "tokens", "demo")
    monkeypatch.setattr("poolbench_driver.estimate.rates.MAX_MANIFESTS", 100)
    rate = earlier.rates("steerer.generate").get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert rate is not None and rate.seconds.expected == pytest.approx(0.02)


def test_stages_are_timed_and_what_is_unknown_is_null_with_a_reason(earlier: Recorded) -> None:
    plan = plan_of(DEMO, metrics=["d1"])
    extracted = amounts(plan, "extractor.extract")[0].work
    assert extracted is not None
    for number in range(6):
        earlier.add(done(number, kind="extractor.extract"), 7.2, 200.0, "passages", extracted.variant)
    rates = earlier.rates("extractor.extract")
    stages = {stage["kind"]: stage for stage in as_json(estimated(plan, rates))["stages"]}
    extraction = stages["extractor.extract"]
    assert extraction["reason"] is None and extraction["gpu_hours"] is None
    assert extraction["hours"]["expected"] == pytest.approx(4000 / 200 * 7.2 / 3600, rel=1e-3)
    assert stages["driver"]["hours"] is None

    nothing = as_json(estimated(plan))
    extraction = next(stage for stage in nothing["stages"] if stage["kind"] == "extractor.extract")
    assert extraction["hours"] is None and "has not executed this work yet" in extraction["reason"]
    assert extraction["bytes"]["expected"] > 0
    assert nothing["total"]["elapsed_hours"] is None and "extractor.extract" in nothing["total"]["reason"]


def test_notes_say_which_other_work_was_timed(earlier: Recorded) -> None:
    earlier.add(done(2, kind="extractor.calibrate"), 1.0, 50.0, "passages", "another@r1/float32")
    said = "\n".join(notes(estimated(plan_of(DEMO), earlier.rates("extractor.calibrate"))))
    assert "this cluster has executed other work only (another@r1/float32 on CPUs)" in said
    assert "this cluster has not executed this work yet" in said


def test_a_reason_is_said_once_for_all_its_stages() -> None:
    (said,) = [line for line in notes(estimated(plan_of(DEMO))) if "not executed" in line]
    assert said.startswith("no time for ") and "extract and pool" in said and "steer (D2, D3)" in said


class Sized(TasksOnly):
    """A service that reads all inputs, and writes outputs of the right size."""

    def __init__(self, name: str, shapes: dict[str, Shape]) -> None:
        self.name, self._shapes = name, shapes
        self.handlers: dict[str, Handler] = {
            kind: self._work for kind in SERVICE_STEPS if kind.partition(".")[0] == name
        }

    def _work(self, task: Task, io: TaskIO) -> None:
        for role in task.inputs:
            (io.manifest if role == scorer.SCORER() or scorer.SCORERS.parse(role) else io.table)(role)
        for role in sorted(io.missing):
            if role == scorer.SCORER():
                io.write_files(role, {"weights.safetensors": b"0"}, meta={"base": "minilm"})
            else:
                io.write_table(role, table_of(role, self._shapes.get(task.outputs[role], Shape(1))))


def table_of(role: str, shape: Shape) -> pa.Table:
    ids = [{"text_id": str(number)} for number in range(shape.rows)]
    if steerer.TEXTS.parse(role) or role == steerer.CONTINUATIONS():
        return table_from_rows(ids, TEXTS)
    if steerer.FLUENCY.parse(role):
        return table_from_rows(ids, FLUENCY)
    if shape.width:
        return pa.table({"vector": vector_column(np.zeros((shape.rows, shape.width)))})
    return pa.table({"x": list(range(shape.rows))})


def numbered(step: LocalStep) -> pa.Table:
    return pa.table({"x": list(range(step.count()))})


def small_plan(seed: int) -> Plan:
    settings = {"concepts": ["contrast"], "layers": [2], "seed": seed, "corpus": {"seed": seed}, "limit": 60}
    config = load_run_config(None, {"preset": "demo", **settings})
    specs = tuple(STRATEGIES.get(name) for name in ("A1_mean", "L5_keyword", "S2_gradient", "S4_sif"))
    plan = make_plan(Scope(config, DEMO, specs))
    local = {key: replace(step, build=partial(numbered, step)) for key, step in plan.local.items()}
    return replace(plan, work=PlannedWork(plan.tasks, local))


def test_a_run_records_the_work_by_which_its_like_is_estimated(tmp_path: Path) -> None:
    """Workers write the amounts that the plan has; from these alone, every task of another run has a time."""
    first, second = small_plan(0), small_plan(1)
    amounts = amounts_of(first)
    shapes = {
        key: own.sized.inputs[role]
        for own in amounts.values()
        for role, key in own.task.inputs.items()
        if role in own.sized.inputs
    }
    artifacts, leases = Artifacts(FolderStore(tmp_path / "store")), FolderLeases(tmp_path / "leases")
    queue = TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))
    with consuming([Consumer(queue, Worker(Sized(name, shapes), artifacts, leases)) for name in SERVICES]):
        assert not RunLoop(first, artifacts, queue, leases, Notes(), pace=FAST).run()
    for name, own in amounts.items():
        assert own.work is not None, own.task.kind
        for key in own.task.outputs.values():
            written = artifacts.manifest(key).producer["work"]
            assert written == own.work._asdict() | {"amount": own.work.amount}, (own.task.kind, name)

    todo = [task for task in second.tasks.values() if not all(map(artifacts.exists, task.outputs.values()))]
    committed = [key for task in first.tasks.values() for key in task.outputs.values()]
    estimated = estimate_tasks(
        second, todo, read_rates(artifacts, committed, {task.kind for task in todo}), ClusterSize()
    )
    assert {name for name, each in estimated.items() if each.seconds is None} == set()
    shared = {task.kind for task in second.tasks.values()} - {each.kind for each in estimated.values()}
    assert shared <= {"steerer.generate", "extractor.calibrate"}
