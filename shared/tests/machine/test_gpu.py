"""One GPU for several services: decisions on measured numbers, and the signs that processes give each other."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.waiting import wait_until

from poolbench.cancellation import Work, WorkCancelledError, working
from poolbench.contracts.tasks import Task
from poolbench.machine import gpu
from poolbench.machine.gpu import MARGIN_BYTES, DeviceMemory, GpuBusyError, SharedGpu, engine_share
from poolbench.runtime import replica

GIB = 2**30


TOTAL = 80 * GIB


WAITS = """
import sys, time
from pathlib import Path
from poolbench.machine.gpu import DeviceMemory, SharedGpu
SharedGpu("extractor", Path(sys.argv[1]), lambda: DeviceMemory(80 * 2**30, 0)).wait_for(int(sys.argv[2]))
"""


WORKS = """
import sys, time
from pathlib import Path
from poolbench.machine.gpu import DeviceMemory, SharedGpu
with SharedGpu("extractor", Path(sys.argv[1]), lambda: DeviceMemory(80 * 2**30, 0)).working():
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("free_gib", "needed_gib", "claimed_gib", "most", "share"),
    [
        (80, 20, 0, 0.85, 0.85),  # alone: what the operator allows
        (60, 20, 0, 0.85, 59.5 / 80),  # another service holds 20: what is free, but for the margin
        (80, 20, 18, 0.85, 61.5 / 80),  # another one waits for 18, and there is room for both
        (40, 30, 18, 0.85, 39.5 / 80),  # there is not: the one that can start starts
        (20, 20, 0, 0.85, None),  # too little now
        (80, 20, 0, 0.2, None),  # more than the operator allows
    ],
)
def test_the_share_of_an_engine(
    free_gib: float, needed_gib: float, claimed_gib: float, most: float, share: float | None
) -> None:
    memory = DeviceMemory(TOTAL, int(free_gib * GIB))
    assert engine_share(memory, int(needed_gib * GIB), int(claimed_gib * GIB), most) == (
        share if share is None else pytest.approx(share)
    )


def test_a_margin_is_left() -> None:
    assert DeviceMemory(TOTAL, 10 * GIB).fits(10 * GIB - MARGIN_BYTES)
    assert not DeviceMemory(TOTAL, 10 * GIB).fits(10 * GIB - MARGIN_BYTES + 1)


class Device:
    """A device whose memory a test sets, and which notes when it was measured."""

    def __init__(self, free_gib: float) -> None:
        self.free_gib = free_gib
        self.measured = 0

    def __call__(self) -> DeviceMemory:
        self.measured += 1
        return DeviceMemory(TOTAL, int(self.free_gib * GIB))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(gpu, "_POLL_S", 0.02)
    monkeypatch.setattr(gpu, "_IDLE_S", 0.1)


def another_waits(folder: Path, needed_gib: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a process that waits for memory."""
    return another(WAITS, folder, needed_gib * GIB)


@contextmanager
def another(program: str, folder: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process on the GPU."""
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), *map(str, arguments)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_processes_that_wait_or_work_are_seen_by_others_until_they_end(tmp_path: Path) -> None:
    shared = SharedGpu("steerer", tmp_path, Device(80))
    assert shared.claimed() == 0
    with another_waits(tmp_path, 18) as process:
        wait_until(lambda: shared.claimed() == 18 * GIB)
        process.kill()
        process.wait()
        assert shared.claimed() == 0
    assert list(tmp_path.iterdir()) == []
    with shared.working():
        assert not shared.others_work()  # its own task is not another's
    assert not list(tmp_path.iterdir())
    with another(WORKS, tmp_path) as process:
        wait_until(shared.others_work)
        assert shared.claimed() == 0  # it waits for no memory
        process.kill()
        process.wait()
        assert not shared.others_work()
    assert not list(tmp_path.iterdir())


class Looking:
    """A service without a language model, whose task looks at the files of those that use the GPU."""

    name = "scorer"

    def __init__(self, folder: Path) -> None:
        self.handlers = {"scorer.gate": lambda task, io: self.seen.extend(path.suffix for path in folder.iterdir())}
        self.seen: list[str] = []


def test_a_replica_on_a_shared_gpu_shows_its_task_and_leaves_tasks_to_others_beside_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"STATE": tmp_path / "state", "STORE": tmp_path / "store", "BROKER": f"filesystem://{tmp_path}/queue"}
    for name, value in settings.items():
        monkeypatch.setenv(f"POOLBENCH_{name}", str(value))
    folder, service = tmp_path / "gpu", Looking(tmp_path / "gpu")
    monkeypatch.setattr(replica, "load_service", lambda *_: service)
    monkeypatch.setattr(replica, "shared_gpu", lambda name: SharedGpu(name, folder, Device(80)))
    sharing = replica.Replica("scorer")
    sharing.run_task(Task(kind="scorer.gate", outputs={"measures": "scorer.gate.00"}).model_dump(mode="json"))
    assert service.seen == [gpu.WORKING] and not list(folder.iterdir())
    affinity = sharing.affinity()
    assert affinity is not None and not affinity.chooses
    with another(WORKS, folder):
        wait_until(lambda: affinity.chooses)


def test_models_are_unloaded_without_work_when_another_process_waits(tmp_path: Path) -> None:
    released, busy = threading.Event(), threading.Event()
    busy.set()
    shared = SharedGpu("steerer", tmp_path, Device(0))
    shared.leave_when_idle(busy.is_set, released.set)
    assert not released.wait(0.3)  # nobody waits
    with another_waits(tmp_path, 18):
        wait_until(lambda: shared.claimed() > 0)
        assert not released.wait(0.5)  # it has work
        busy.clear()
        assert released.wait(300)


def test_a_service_waits_for_memory(tmp_path: Path) -> None:
    device = Device(5)
    shared = SharedGpu("scorer", tmp_path, device)
    waiting = threading.Thread(target=shared.wait_for, args=(10 * GIB,), daemon=True)
    waiting.start()
    wait_until(lambda: list(tmp_path.glob("scorer-*.waiting")))
    assert shared.claimed() == 0  # its own claim is not another's
    device.free_gib = 20
    waiting.join(300)
    assert not waiting.is_alive() and list(tmp_path.iterdir()) == []


def test_waiting_ends_with_its_patience_and_with_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedGpu("scorer", tmp_path, Device(5))
    work = Work()
    work.cancel("the run was cancelled")
    with working(work), pytest.raises(WorkCancelledError):
        shared.wait_for(10 * GIB)
    monkeypatch.setattr(gpu, "_PATIENCE_S", 0.0)
    with pytest.raises(GpuBusyError, match=r"needs 10\.0 GiB of GPU memory, and 5\.0 are free"):
        shared.wait_for(10 * GIB)
    assert list(tmp_path.iterdir()) == []
