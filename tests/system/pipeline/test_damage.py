"""A run of the real pooler, extractor and prober whose files are damaged: the same command gives the same digest."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver.tests.loop_bench import Consumer, Notes
from tests.waiting import PATIENCE_S

from poolbench.queue import Broker, TaskQueue
from poolbench.queue.leases import FolderLeases
from poolbench.storage import Artifacts, open_store
from poolbench.worker.service import load_service
from poolbench.worker.worker import Worker
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import prepare
from poolbench_driver.records.folder import create_run

pytestmark = pytest.mark.lane(name="series")

SETTINGS = {
    "preset": "demo",
    "limit": 60,
    "concepts": ["contrast", "depression"],  # one of them is restricted
    "strategies": ["A1_mean", "L5_keyword"],
    "metrics": ["d1"],
    "layers": [2],
}
DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    lambda data: b"\xff garbage",
]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A store, a queue and one consumer for each service."""
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    queue, leases = TaskQueue(Broker(f"filesystem://{tmp_path}/queue")), FolderLeases(tmp_path / "leases")
    services = [load_service(name) for name in ("pooler", "extractor", "prober")]
    consumers = [Consumer(queue, Worker(service, artifacts, leases)) for service in services]
    for consumer in consumers:
        consumer.start()
    yield Session(None, artifacts, queue, leases, None)  # type: ignore[arg-type]
    for consumer in consumers:
        consumer.stop.set()
        consumer.join(PATIENCE_S)


def digest_of(session: Session, output: Path, notes: Notes) -> str:
    job = prepare(load_run_config(None, SETTINGS), session)
    folder = create_run(output, job.config)
    assert job.run(folder, notes).done, notes.failures
    return str(folder.read_state()["results_digest"])


def test_the_same_command_repairs_every_kind_of_file(session: Session, tmp_path: Path) -> None:
    first = digest_of(session, tmp_path / "runs", Notes())
    store, rng = Path(session.artifacts.store.uri), random.Random(0)
    measures = {key for key, _ in session.artifacts.objects() if key.removeprefix("restricted.").startswith("prober.")}
    for key in measures:  # all that rows are made from is gone or damaged, so that everything below is read again
        if rng.random() < 0.5:
            session.artifacts.delete(key)
    files = [path for path in sorted((store / "artifacts").rglob("*")) if path.is_file()]
    for path in files:
        if rng.random() < 0.6:
            path.write_bytes(rng.choice(DAMAGES)(path.read_bytes()))
    notes = Notes()
    assert digest_of(session, tmp_path / "runs", notes) == first
    reported = [line for line in notes.lines if line.startswith("damaged: ")]
    kinds = {line.split()[1].removeprefix("restricted.").rpartition(".")[0] for line in reported}
    assert {"corpus.passages", "pooler.annotate", "extractor.extract", "prober.probe"} <= kinds
    again = Notes()
    assert digest_of(session, tmp_path / "runs", again) == first
    assert again.finished == []
