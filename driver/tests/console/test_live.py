"""The live view: a run in work, queues and dead letters, from a real store and a real queue folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from driver.tests.console.conftest import SCREENS, check_reading, serving
from tests.poison import echo
from tests.servers.services import cluster_environment
from tests.waiting import wait_until

from poolbench.contracts.tasks import Task
from poolbench.queue import Broker, TaskQueue
from poolbench.settings import ClusterSettings
from poolbench.steps.prober import MEASURES, PROBE
from poolbench.storage import Artifacts, open_store
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.app import Console
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.loop.progress import Recording, open_display
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import create_run
from poolbench_driver.records.progress import MOST, FirstFigures, Progress, StageProgress
from poolbench_driver.records.record import RunRecords
from poolbench_driver.records.writer import Rhythm, RunWriter

MARKUP = "<img src=x onerror=alert(1)>"
in_chromium = pytest.mark.lane(name="browser")

PROBES = [
    Task(kind=PROBE.kind, outputs={MEASURES(name, 2): f"prober.measures.{number}"})
    for number, name in enumerate(("A1_mean", "P1_last_token"))
]


@dataclass
class Cluster:
    """A store, a queue folder, and a driver that works on a run."""

    queue: TaskQueue
    artifacts: Artifacts
    folder: Run
    recording: Recording
    address: str = ""

    def letter_ids(self) -> list[str]:
        return [letter.letter.letter_id for letter in self.queue.stored_letters("prober")]

    def finish(self, probe: Task, auroc: float) -> None:
        """A worker commits a probe, and the loop notices it."""
        (key,) = probe.outputs.values()
        self.artifacts.write_table(key, pa.table({"metric": ["d1.auroc"], "value": [auroc]}), producer={})
        self.recording.done(probe)
        self.recording.tick({})  # nothing is in flight, so that it is published at once


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in cluster_environment("http://127.0.0.1:9", tmp_path).items():
        monkeypatch.setenv(name, value)
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    queue = TaskQueue(Broker(f"filesystem://{tmp_path}/queue"))
    for number in (1, 2):
        queue.bury("prober", echo(number).model_dump(mode="json"), f"no luck {number} {MARKUP}")
    folder = create_run(tmp_path / "runs", load_run_config(None, {"preset": "demo"}))
    with RunWriter(artifacts.store, folder, lambda note: None, Rhythm(tick_s=0.05)) as writer:
        figures = FirstFigures(artifacts, ["d1.auroc"])
        writer.follow(figures)
        recording = Recording(open_display("none"), writer, len(PROBES), figures.add)
        recording.start(Counter(task.kind for task in PROBES))
        recording.note(f"a note {MARKUP}")
        recording.failed("t9", "scorer.score", "it broke")
        recording.tick({task.task_id: task for task in PROBES})
        made = Cluster(queue, artifacts, folder, recording)
        source = Runs(tmp_path / "copies", RunRecords(artifacts.store))
        (tmp_path / "copies").mkdir()
        with serving(Console(source, Services(ClusterSettings.load(http_only=True))).application()) as address:
            made.address = address
            yield made


def read_until(cluster: Cluster, path: str, ready: Any) -> dict[str, Any]:
    """What an address answers, once it is ready; the driver writes from a thread."""

    def look() -> dict[str, Any] | None:
        answer = httpx.get(cluster.address + path).json()
        return answer if ready(answer) else None

    answer = wait_until(look)
    assert answer is not None
    return answer


def has_figures_of_a_task_that_is_done(answer: dict[str, Any]) -> bool:
    (stage,) = answer["progress"]["stages"]
    return bool(answer["progress"]["figures"]) and stage["done"] > 0


def test_a_run_is_followed_from_another_machine(cluster: Cluster) -> None:
    path = f"/api/runs/{cluster.folder.id}/progress"
    run = read_until(cluster, path, lambda answer: answer.get("progress"))
    (stage,) = run["progress"]["stages"]
    assert (stage["done"], stage["tasks"], stage["label"], stage["left_s"]) == (0, 2, "probe (D1)", None)
    assert [sent["task"] for sent in run["progress"]["sent"]] == [task.task_id for task in PROBES]
    assert run["progress"]["failures"] == [{"task": "t9", "label": "score texts", "reason": "it broke"}]
    assert run["progress"]["notes"] == [f"a note {MARKUP}"]
    cluster.finish(PROBES[0], 0.75)
    # Figures and stages are read one after the other, so the first answer with figures may have the stages of before.
    run = read_until(cluster, path, has_figures_of_a_task_that_is_done)
    (figure,) = run["progress"]["figures"]
    assert figure == {"metric": "d1.auroc", "entrant": "A1_mean", "layer": 2, "value": 0.75, "num_cells": 1}
    (stage,) = run["progress"]["stages"]
    assert stage["done"] == 1 and stage["left_s"] == pytest.approx(60 / stage["per_min"])


def test_the_live_view_has_queues_letters_and_runs(cluster: Cluster) -> None:
    state = read_until(cluster, "/api/live", lambda answer: answer["in_work"])
    (prober,) = (service for service in state["services"] if service["service"] == "prober")
    assert (prober["health"], prober["dead_letters"]) == ("down", 2)
    assert [row["reason"] for row in state["dead_letters"]] == [f"no luck {n} {MARKUP}" for n in (1, 2)]
    letter = httpx.get(f"{cluster.address}/api/dead-letters/{cluster.letter_ids()[0]}").json()
    assert letter["task"]["task_id"] == echo(1).task_id
    page = httpx.get(f"{cluster.address}/live").text
    assert "no luck 1" in page and "1 run in work" in page and "<img" not in page


def test_letters_are_sent_again_and_dropped_from_its_own_pages_only(cluster: Cluster) -> None:
    first, second = cluster.letter_ids()
    address, ours = f"{cluster.address}/api/dead-letters", {"Origin": cluster.address}
    assert httpx.post(f"{address}/{first}/retry").status_code == 403
    for name in (first[:8], "f" * 32, "..%2f..", "x" * 5000):
        assert httpx.post(f"{address}/{name}/retry", headers=ours).status_code == 404
    assert httpx.get(f"{address}/{first}/retry", headers=ours).status_code == 405
    assert cluster.letter_ids() == [first, second] and not cluster.queue.waiting("prober")
    (report,) = httpx.post(f"{address}/{first}/retry", headers=ours).json()["reports"]
    assert report["verdict"] == "sent again" and cluster.queue.waiting("prober") == {report["task_id"]}
    (report,) = httpx.post(f"{address}/{second}/drop", headers=ours).json()["reports"]
    assert report["verdict"] == "dropped" and cluster.letter_ids() == []
    assert httpx.post(f"{address}/{second}/drop", headers=ours).status_code == 404


@in_chromium
@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_the_live_page_reads_on_every_screen(cluster: Cluster, opened: Any, scheme: str, width: int) -> None:
    read_until(cluster, "/api/live", lambda answer: answer["in_work"])
    for path in ("/live", f"/runs/{cluster.folder.id}/progress", f"/dead-letters/{cluster.letter_ids()[0]}"):
        check_reading(opened(cluster.address + path, scheme, width))


@in_chromium
def test_the_page_renews_itself_and_sends_a_letter_again(cluster: Cluster, opened: Any) -> None:
    read_until(cluster, "/api/live", lambda answer: answer["in_work"])
    page = opened(f"{cluster.address}/live")
    assert "First figures" not in page.locator("main").inner_text()
    cluster.finish(PROBES[1], 0.625)
    page.locator("caption", has_text="First figures").wait_for()
    assert "0.625" in page.locator("main").inner_text()
    page.locator("tr", has_text="no luck 2").get_by_role("button", name="Send again").press("Enter")
    page.locator("tr", has_text="no luck 2").wait_for(state="detached")
    assert cluster.queue.waiting("prober") == {echo(2).task_id}
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Drop").click()
    page.locator("tr", has_text="no luck 1").wait_for(state="detached")
    assert cluster.letter_ids() == []


def test_rates_and_remaining_times_are_those_of_the_counts() -> None:
    stage = StageProgress(kind="k", label="l", tasks=10, done=5, failed=1, reused=2, worked_s=120)
    assert stage.per_min == 2.0 and stage.left_s == 120.0
    idle = StageProgress(kind="k", label="l", tasks=3)
    assert idle.per_min is None and idle.left_s is None
    assert Progress(stages=(stage, idle)).left_s is None and Progress(stages=(stage, stage)).left_s == 120.0


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"stages": [{}]}', b"[" * 99_999, b'{"elapsed_s": NaN}', b'{"elapsed_s": -1}', b"\xff"]
)
def test_damaged_progress_is_none(tmp_path: Path, raw: bytes) -> None:
    records = RunRecords(open_store(str(tmp_path)))
    records.store.put("runs/other/progress.json", raw)
    assert records.progress("other") is None and records.progress("none") is None


def test_lists_that_are_published_are_short(cluster: Cluster) -> None:
    for number in range(100):
        cluster.recording.note("long " * 1000)
        cluster.recording.failed(f"t{number}", "scorer.score", "x" * 10_000)
    cluster.recording.tick({})
    records = RunRecords(cluster.artifacts.store)
    progress = wait_until(lambda: (now := records.progress(cluster.folder.id)) and len(now.failures) == MOST and now)
    assert (
        isinstance(progress, Progress)
        and len(progress.notes) == len(progress.failures) == MOST
        and len(progress.failures[0].reason) == 500
    )
