"""The times that a service recorded in its manifests are those of a dry run, and of tasks in `bench/scale.py`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, open_leases
from poolbench.statuses import TaskOutcome
from poolbench.steps.pooler import ANNOTATE
from poolbench.worker.worker import Worker
from poolbench_driver.cli import app
from poolbench_driver.cluster.session import open_session
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.estimate.amounts import amounts_of
from poolbench_driver.job import prepare
from poolbench_driver.stages.stage import Plan
from poolbench_pooler.service import create

SMALL = {"preset": "demo", "strategies": ["L1_pos_filtered"], "limit": 60}


def annotations(plan: Plan) -> list[Task]:
    return [task for task in plan.tasks.values() if task.kind == ANNOTATE.kind]


def passages(plan: Plan, tasks: list[Task]) -> float:
    amounts = [amounts_of(plan)[task.task_id].work for task in tasks]
    return sum(amount.amount for amount in amounts if amount)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the store of a cluster of which only the folders exist."""
    broker = f"filesystem://{tmp_path}/queue"
    places = {"STATE": str(tmp_path / "state"), "STORE": str(tmp_path / "store"), "BROKER": broker}
    for name, value in {**places, "HTTP": "http://127.0.0.1:9", "TOKEN": "none"}.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", value)
    return f"file://{tmp_path}/store"


@pytest.fixture
def rate(store: str, tmp_path: Path) -> float:
    """Annotate the passages of a run as a replica does; return the seconds per passage in its manifests."""
    session = open_session()
    plan = prepare(load_run_config(None, {**SMALL, "concepts": ["contrast"]}), session).plan
    tasks = annotations(plan)
    needed = {key for task in tasks for key in task.inputs.values()}
    for step in plan.local.values():
        if step.key in needed:
            session.artifacts.write_table(step.key, step.build())
    worker = Worker(create(), session.artifacts, open_leases(Broker(f"filesystem://{tmp_path}/queue")))
    assert {worker.run(task.model_dump(mode="json")) for task in tasks} == {TaskOutcome.DONE}
    made = [session.artifacts.manifest(key).producer for task in tasks for key in task.outputs.values()]
    assert all(each["work"]["unit"] == "passages" and each["wall_s"] > 0 for each in made)
    return float(sum(each["wall_s"] for each in made) / sum(each["work"]["amount"] for each in made))


def test_a_dry_run_and_a_simulation_take_the_times_of_a_recorded_run(rate: float, store: str) -> None:
    options = ["--concepts", "hedging", "--strategies", "L1_pos_filtered", "--limit", "60", "--dry-run"]
    done = CliRunner().invoke(app, ["run", "--preset", "demo", "--gpus", "1", "--display", "json", *options])
    stages = {stage["kind"]: stage for stage in json.loads(done.stdout)["estimate"]["stages"]}
    plan = prepare(load_run_config(None, {**SMALL, "concepts": ["hedging"]}), session := open_session()).plan
    left = [task for task in annotations(plan) if not session.artifacts.exists(next(iter(task.outputs.values())))]
    found = stages[ANNOTATE.kind]
    assert left and (found["reason"], found["tasks"]) == (None, len(left))
    assert found["hours"]["expected"] == pytest.approx(rate * passages(plan, left) / 3600, rel=1e-3)
    assert stages["extractor.extract"]["hours"] is None

    import scale
    from scaling.plans import VARIATION, card_plan, times_of

    card = card_plan("gemma-2-9b", concepts=["contrast"], strategies=["A1_mean", "L5_keyword"], layers=[0.5])
    times, assumed = times_of([card], scale.recorded(store)), times_of([card])
    ours = annotations(card)
    assert times.sources == {"recorded": len(ours), "assumed": len(card.tasks) - len(ours)}
    for task in ours:
        ratio = times.tasks[task.task_id] / (rate * passages(card, [task]))
        assert 1 - VARIATION <= ratio <= 1 + VARIATION
    others = card.tasks.keys() - {task.task_id for task in ours}
    assert all(times.tasks[name] == assumed.tasks[name] for name in others)
