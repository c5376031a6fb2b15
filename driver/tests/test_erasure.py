"""Texts of sensitive concepts through a real loop, queue and store: scored, deleted, not made again, resumed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.loop_bench import task_of
from tests.waiting import PATIENCE_S

from poolbench.config import ModelRef
from poolbench.contracts.keys import is_restricted
from poolbench.contracts.tables import TEXTS, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import SERVICES
from poolbench.errors import CellError, RestrictedError
from poolbench.pooling.registry import STRATEGIES
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.envelope import queue_name
from poolbench.queue.leases import FolderLeases
from poolbench.steps import SERVICE_STEPS
from poolbench.storage import NO_ACCESS, Artifacts, open_store
from poolbench.storage.erasure import erase_texts
from poolbench.worker.service import Handler
from poolbench.worker.taskio import TaskIO
from poolbench.worker.worker import Worker
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.loop import Pace, RunLoop, remaining
from poolbench_driver.loop.erasure import Erasure, scored_texts
from poolbench_driver.loop.progress import open_display
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import PlannedWork, committed_keys
from poolbench_driver.stages.steering import NULLS
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan, make_plan

SECRET = "SECRET-STEERED-TEXT"
FAST = Pace(vanished_s=60.0, tick_s=0.01, queued_ahead=50)
D2, D3 = ("d1", "d2"), ("d1", "d2", "d3")


def plan_of(*concepts: str, metrics: tuple[str, ...] = D3) -> PoolBenchPlan:
    """A real plan; its passages are a row."""
    settings = {"preset": "demo", "concepts": list(concepts), "metrics": list(metrics), "layers": [2]}
    config = load_run_config(None, {**settings, "strategies": ["A1_mean"]})
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=4)
    plan = make_plan(Scope(config, model, [STRATEGIES.get("A1_mean")]))
    local = {key: LocalStep(key, step.label, lambda: pa.table({"x": [1]})) for key, step in plan.local.items()}
    return replace(plan, work=PlannedWork(plan.tasks, local))


class Everything:
    """All services at once: each output is a row; texts hold the secret, and scoring reads them."""

    name = "steerer"

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = dict.fromkeys(SERVICE_STEPS, self.work)
        self.worked: list[str] = []
        self.broken: set[str] = set()

    def work(self, task: Task, io: TaskIO) -> None:
        self.worked.append(task.kind)
        if task.kind in self.broken:
            raise CellError("failed", f"could not work on {SECRET}")
        if task.kind in ("scorer.score", "scorer.gate"):
            for role in task.inputs:
                if role.startswith(("texts", "continuations")):
                    assert SECRET in io.table(role)["text"][0].as_py()
        for role in sorted(io.missing):
            row = {
                "text_id": "t",
                "prompt_id": "p",
                "strength": 0.5,
                "text": SECRET,
                "prompt": SECRET,
                "token_ids": [1],
            }
            texts = role.partition("/")[0] == "texts"
            io.write_table(role, table_from_rows([row], TEXTS) if texts else pa.table({"x": [1]}))

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


class Cluster(threading.Thread):
    """One worker for every queue over real storage."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.artifacts = Artifacts(open_store(str(root / "store")))
        self.queue = TaskQueue(Broker(f"filesystem://{root}/queue"))
        self.leases = FolderLeases(root / "leases")
        self.service, self.ended = Everything(), threading.Event()
        self.worker = Worker(self.service, self.artifacts, self.leases)

    def run(self) -> None:
        channel = self.queue.broker.celery_app().connection_for_read().default_channel
        while not self.ended.wait(0.002):
            for name in SERVICES:
                try:
                    message = channel._get(queue_name(name))
                except Empty:
                    continue
                self.worker.run(task_of(message))

    def loop(self, plan: PoolBenchPlan) -> RunLoop:
        return RunLoop(plan, self.artifacts, self.queue, self.leases, open_display("none"), pace=FAST)

    def do(self, plan: PoolBenchPlan) -> list[str]:
        """Runs a plan; returns the kinds of the tasks that were worked on."""
        self.service.worked.clear()
        self.loop(plan).run()
        return list(self.service.worked)

    def secrets(self) -> set[str]:
        """Keys of the artifacts that hold a text, in any file of theirs."""
        found = self.artifacts.objects()
        return {key for key, info in found if b"token_ids" in self.artifacts.store.get(info.path)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.ended.set()
    made.join(PATIENCE_S)


def texts_of(plan: PoolBenchPlan, concept: str) -> set[str]:
    """Keys of a concept's steered texts and of the continuations of its passages."""
    return {
        *(t.texts for t in plan.steering.texts.concepts[concept].texts.values()),
        plan.steering.scorers.concepts[concept].continuations,
    }


def test_scored_texts_of_sensitive_concepts_are_gone_and_all_else_is_there(cluster: Cluster) -> None:
    plan = plan_of("contrast", "toxicity")
    worked = cluster.do(plan)
    assert {"steerer.generate", "steerer.continue", "scorer.score", "scorer.gate"} <= set(worked)
    toxic = texts_of(plan, "toxicity") | {plan.steering.scorers.concepts["depression"].continuations}
    assert all(map(is_restricted, toxic))
    assert cluster.secrets() & toxic == set()
    assert texts_of(plan, "contrast") <= cluster.secrets()  # only the sensitive ones go
    for key in toxic:
        assert cluster.artifacts.read_receipts(key)["strength"].to_pylist() == [0.5]
    cells, texts = plan.vectors.concepts["toxicity"], plan.steering.texts.concepts["toxicity"].texts.values()
    scores = plan.steering.scores.concepts["toxicity"].values()
    for key in (*scores, *(own.fluency for own in texts), *cells.vectors.values(), *cells.passages.values()):
        assert cluster.artifacts.read_table(key).num_rows == 1


def test_the_same_run_again_generates_nothing(cluster: Cluster) -> None:
    cluster.do(plan_of("toxicity"))
    before = {info.path: info.modified_s for info in cluster.artifacts.store.list("restricted/")}
    plan = plan_of("toxicity")
    assert cluster.do(plan) == []
    assert {info.path: info.modified_s for info in cluster.artifacts.store.list("restricted/")} == before
    assert remaining(plan, committed_keys(cluster.artifacts)) == []


def test_texts_stay_until_every_scorer_of_the_run_is_done(cluster: Cluster) -> None:
    """A run that could not score keeps its texts; the next one scores and deletes them, and generates nothing."""
    cluster.service.broken = {"scorer.score"}
    plan = plan_of("toxicity")
    cluster.do(plan)
    texts = {own.texts for own in plan.steering.texts.concepts["toxicity"].texts.values()}
    assert texts <= cluster.secrets()
    cluster.service.broken.clear()
    assert set(cluster.do(plan)) == {"scorer.score"}
    assert cluster.secrets() & texts == set()


def test_a_neighbour_that_is_added_later_has_them_made_scored_and_deleted_again(cluster: Cluster) -> None:
    """D2 alone needs the concept's own scorer; D3 gives the same texts to the neighbours' scorers too."""
    first, second = plan_of("toxicity", metrics=D2), plan_of("toxicity", metrics=D3)
    texts = first.steering.texts.concepts["toxicity"].texts
    assert texts == second.steering.texts.concepts["toxicity"].texts
    cluster.do(first)
    again = Erasure(second, cluster.artifacts).needed_again(committed_keys(cluster.artifacts))
    assert again == {key for own in texts.values() for key in own}
    todo = remaining(second, committed_keys(cluster.artifacts) - again)
    assert {task.kind for task in todo} >= {"steerer.generate", "scorer.score"}
    worked = cluster.do(second)
    assert worked.count("steerer.generate") == 2  # null directions and strategies; the unsteered texts are there
    restricted = {key for key in cluster.secrets() if is_restricted(key)}
    assert restricted == set()
    assert cluster.do(first) == cluster.do(second) == []


@pytest.mark.parametrize("where", ["scored, nothing deleted", "erased, files left", "some left"])
def test_a_run_that_was_killed_while_it_deleted_goes_on(cluster: Cluster, where: str) -> None:
    plan = plan_of("toxicity")
    loop = cluster.loop(plan)
    loop.recovery.erasure.due = lambda committed: []  # type: ignore[method-assign,assignment]
    loop.run()
    texts = sorted(texts_of(plan, "toxicity"))
    assert set(texts) <= cluster.secrets()
    broken, store = Artifacts(cluster.artifacts.store), cluster.artifacts.store
    if where == "erased, files left":
        kept = {
            info.path: store.get(info.path) for info in store.list(f"restricted/{texts[0]}/") if "table" in info.path
        }
        erase_texts(broken, texts[0])
        for path, data in kept.items():
            store.put(path, data)
    elif where == "some left":
        erase_texts(broken, texts[0])
    assert cluster.do(plan) == []
    assert cluster.secrets() & set(texts) == set()


def test_a_run_killed_while_it_makes_erased_texts_missing_goes_on(cluster: Cluster) -> None:
    """Likelihoods go first: what is left still says that it is erased, so the next run starts there again."""
    cluster.do(plan_of("toxicity", metrics=D2))
    plan = plan_of("toxicity", metrics=D3)
    cluster.artifacts.delete(plan.steering.texts.concepts["toxicity"].texts["A1_mean"].fluency)
    again = Erasure(plan, cluster.artifacts).needed_again(committed_keys(cluster.artifacts))
    assert plan.steering.texts.concepts["toxicity"].texts["A1_mean"].texts in again
    cluster.artifacts.delete(plan.steering.texts.concepts["toxicity"].texts[NULLS].texts)
    cluster.do(plan)
    assert not any(map(is_restricted, cluster.secrets()))
    for key in plan.steering.scores.concepts["toxicity"].values():
        assert cluster.artifacts.exists(key)


def test_texts_that_another_run_deletes_under_our_hands_are_made_again(cluster: Cluster) -> None:
    """Two runs share texts: the other one has its scores, and deletes them just before our scorer reads them."""
    plan, work, struck = plan_of("toxicity"), cluster.service.work, list[str]()

    def strike(task: Task, io: TaskIO) -> None:
        if not struck:
            struck.extend(key for role, key in task.inputs.items() if role.startswith("texts/") and is_restricted(key))
            for key in struck:
                erase_texts(cluster.artifacts, key)
        work(task, io)

    cluster.service.handlers["scorer.score"] = strike
    loop = cluster.loop(plan)
    assert loop.run() == {} and struck
    assert not any(map(is_restricted, cluster.secrets()))
    assert all(cluster.artifacts.exists(key) for key in plan.steering.scores.concepts["toxicity"].values())
    assert cluster.do(plan) == []


def test_upkeep_deletes_what_a_run_left_unless_one_at_work_reads_it(cluster: Cluster) -> None:
    plan = plan_of("toxicity")
    loop = cluster.loop(plan)
    loop.recovery.erasure.due = lambda committed: []  # type: ignore[method-assign,assignment]
    loop.run()
    torn = f"restricted/{plan.steering.texts.concepts['toxicity'].texts[NULLS].texts}/killed/table.arrow"
    cluster.artifacts.store.put(torn, b"torn")
    committed = committed_keys(cluster.artifacts)
    idle = Erasure(plan, cluster.artifacts)
    assert scored_texts(committed, [idle], plan.keys) == set()
    assert scored_texts(committed, [], set()) == set()
    assert texts_of(plan, "toxicity") <= scored_texts(committed, [idle], set())
    assert idle.torn(lambda info: False) == [] and idle.torn(lambda info: True) == [torn]
    idle.erase(scored_texts(committed, [idle], set()))
    assert not any(map(is_restricted, cluster.secrets()))


def test_texts_without_scores_are_not_upkeeps_to_delete(cluster: Cluster) -> None:
    cluster.service.broken = {"scorer.score", "scorer.gate"}
    plan = plan_of("toxicity")
    cluster.do(plan)
    assert scored_texts(committed_keys(cluster.artifacts), [Erasure(plan, cluster.artifacts)], set()) == set()


def test_a_plan_knows_whether_it_needs_access(tmp_path: Path) -> None:
    assert plan_of("toxicity").restricted and not plan_of("contrast").restricted
    assert plan_of("frustration").restricted and not plan_of("frustration", metrics=D2).restricted  # by a neighbour
    with pytest.raises(RestrictedError):
        Artifacts(open_store(str(tmp_path), NO_ACCESS)).require_restricted()
