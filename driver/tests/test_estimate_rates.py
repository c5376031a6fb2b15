"""Rates from the manifests of earlier tasks, and the stages that are estimated from them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from driver.tests.test_estimate import DEMO, amounts, estimated, plan_of

from poolbench.contracts.tasks import Task
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.estimate import as_json, read_rates
from poolbench_driver.estimate.rates import Rates
from poolbench_driver.estimate.text import notes


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
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "recorded")


def done(number: int, outputs: int = 2, kind: str = "steerer.generate") -> Task:
    return Task(kind=kind, outputs={f"y{n}": f"{kind}.{number:04d}{n:04d}" for n in range(outputs)})


def test_rates_are_sums_of_times_over_sums_of_work(recorded: Recorded) -> None:
    for number, seconds in enumerate([2.0, 1.0, 1.2, 1.0, 1.0, 0.8, 1.0, 1.0, 1.0, 3.0]):
        recorded.add(done(number), seconds, 100.0, "tokens", "demo")
    rate = recorded.rates("steerer.generate").get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert rate is not None and rate.num_tasks == 10
    assert rate.seconds.expected == pytest.approx(13.0 / 1000)
    assert rate.seconds.low == pytest.approx(0.01) and rate.seconds.high == pytest.approx(0.02)
    assert rate.num_bytes.expected > 0


def test_rates_of_other_models_gpus_versions_and_damaged_manifests_do_not_count(recorded: Recorded) -> None:
    recorded.add(done(1), 50.0, 100.0, "tokens", "another model")
    recorded.add(done(2), 1.0, 100.0, "tokens", "demo", accelerator="NVIDIA H100")
    recorded.add(done(3), 1.0, 100.0, "tokens", "demo", work=None)
    recorded.add(done(4), 1.0, -5.0, "tokens", "demo")
    recorded.add(done(5), 1.0, 100.0, "tokens", "demo")
    broken = next(Path(recorded.artifacts.store.uri.removeprefix("file://")).glob("artifacts/*00050000/manifest.json"))
    broken.write_text("{")
    rates = recorded.rates("steerer.generate", "extractor.extract")
    on_cpu = rates.get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert on_cpu is not None and on_cpu.num_tasks == 1 and on_cpu.seconds.expected == 0  # the part that is left
    on_gpu = rates.get("steerer.generate", "tokens", "demo", on_gpu=True)
    assert on_gpu is not None and on_gpu.seconds == pytest.approx((0.01, 0.005, 0.02))


def test_a_sample_of_manifests_gives_the_same_rate(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        recorded.add(done(number, outputs=5), 2.0, 100.0, "tokens", "demo")
    monkeypatch.setattr("poolbench_driver.estimate.rates.MAX_MANIFESTS", 100)
    rate = recorded.rates("steerer.generate").get("steerer.generate", "tokens", "demo", on_gpu=False)
    assert rate is not None and rate.seconds.expected == pytest.approx(0.02)


def test_stages_are_timed_and_what_is_unknown_is_null_with_a_reason(recorded: Recorded) -> None:
    plan = plan_of(DEMO, metrics=["d1"])
    extracted = amounts(plan, "extractor.extract")[0].work
    assert extracted is not None
    for number in range(6):
        recorded.add(done(number, kind="extractor.extract"), 7.2, 200.0, "passages", extracted.variant)
    rates = recorded.rates("extractor.extract")
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


def test_notes_say_which_other_work_was_timed(recorded: Recorded) -> None:
    recorded.add(done(2, kind="extractor.calibrate"), 1.0, 50.0, "passages", "another@r1/float32")
    said = "\n".join(notes(estimated(plan_of(DEMO), recorded.rates("extractor.calibrate"))))
    assert "this cluster has executed other work only (another@r1/float32 on CPUs)" in said
    assert "this cluster has not executed this work yet" in said


def test_a_reason_is_said_once_for_all_its_stages() -> None:
    (said,) = [line for line in notes(estimated(plan_of(DEMO))) if "not executed" in line]
    assert said.startswith("no time for ") and "extract and pool" in said and "steer (D2, D3)" in said
