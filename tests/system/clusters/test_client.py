"""A client that knows a cluster by its HTTP address alone: login, what its commands do, and what they refuse.

`CLIENT` names the command, so that `make test-client` can test one that was installed from wheels.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.servers.services import TOKEN, serving
from tests.waiting import PATIENCE_S

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import run_path
from poolbench.library.concepts import Library
from poolbench.queue import Broker, TaskQueue
from poolbench.queue.letters import DeadLetter
from poolbench.queue.messages import queue_name
from poolbench.settings import PlaceSettings
from poolbench.storage import Artifacts, open_store
from poolbench.storage.base import ObjectStore
from poolbench_extractor.service import create as extractor
from poolbench_pooler.service import PoolerService
from poolbench_prober.service import create as prober
from poolbench_scorer.service import ScorerService
from poolbench_steerer.service import create as steerer

pytestmark = pytest.mark.lane(name="client")

CLIENT = os.environ.get("CLIENT") or str(Path(sys.executable).with_name("poolbench-driver"))
RUN = "demo-planted-0123abcd"
STATE = {"state": "running", "host": "elsewhere", "pid": 1, "tasks": 4, "tasks_done": 3, "failures": 0}
Client = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    return open_store(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def address(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The five services, with a dead letter of the prober."""
    broker = Broker(f"filesystem://{tmp_path_factory.mktemp('queue')}")
    queue = TaskQueue(broker)
    task = Task(task_id="t1", kind="prober.probe", run_id=RUN, inputs={}, outputs={"measures": "k"})
    broker.spool().bury(queue_name("prober"), DeadLetter.of_task("prober", task.model_dump(mode="json"), "lost"))
    services = {
        "extractor": extractor(),
        "pooler": PoolerService(lambda: Library(store), lambda: queue),
        "prober": prober(),
        "scorer": ScorerService(lambda: Artifacts(store)),
        "steerer": steerer(),
    }
    with serving(services) as address:
        yield address


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """The command, as a user runs it in a folder without a cluster."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}

    def call(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        own = {**mine, "XDG_CONFIG_HOME": str(tmp_path / "config"), **environment}
        return subprocess.run(
            [CLIENT, *arguments], cwd=tmp_path, env=own,
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    return call


@pytest.fixture
def logged_in(client: Client, address: str) -> Client:
    done = client("login", address, stdin=f"{TOKEN}\n")
    assert done.returncode == 0, done.stderr
    return client


def refused(done: subprocess.CompletedProcess[str], code: int, expected: str) -> None:
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert expected in done.stderr
    assert TOKEN not in done.stderr + done.stdout


def test_a_login_is_checked_and_kept_for_its_owner(client: Client, address: str, tmp_path: Path) -> None:
    kept = tmp_path / "config" / "poolbench" / "login.json"
    refused(client("login", address, stdin="wrong\n"), 1, "pooler refused the token; the token given differs")
    refused(client("login", address, stdin="\n"), 2, "the token is empty")
    refused(client("login", "ftp://example.org", stdin=TOKEN), 2, "is not the address of a cluster")
    refused(client("login", "http://127.0.0.1:9", stdin=TOKEN), 1, "the command line names this address")
    assert not kept.exists()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    done = client("login", f"{address}/", "--token-file", "token")
    assert done.returncode == 0 and TOKEN not in done.stdout
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_text()) == {"http": address, "token": TOKEN}
    assert client("logout").returncode == 0 and not kept.exists()
    refused(client("status"), 2, "`poolbench-driver login URL`")


def test_the_environment_comes_before_the_login(logged_in: Client, address: str, tmp_path: Path) -> None:
    http, token = PlaceSettings.variable("http"), PlaceSettings.variable("token")
    refused(logged_in("ls", "scorers", **{token: "wrong"}), 1, "refused the token; POOLBENCH_TOKEN differs")
    elsewhere = {http: "http://127.0.0.1:9", token: TOKEN}
    refused(logged_in("ls", "scorers", **elsewhere), 1, "POOLBENCH_HTTP names this address")
    # The token of the login goes to the address of the login only.
    refused(
        logged_in("ls", "scorers", **{http: address.replace("127.0.0.1", "localhost")}),
        2,
        "no token for http://localhost",
    )
    (tmp_path / "config" / "poolbench" / "login.json").write_text("{")
    refused(logged_in("ls", "scorers"), 2, "is damaged: `poolbench-driver login URL` writes it again")


def test_status_and_dead_letters_are_read_over_http(logged_in: Client) -> None:
    found = json.loads(logged_in("status", "--json").stdout)
    assert {each["service"]: each["health"] for each in found["services"]}["prober"] == "ok"
    assert {each["service"]: each["dead_letters"] for each in found["services"]}["prober"] == 1
    (letter,) = json.loads(logged_in("dead-letters", "ls", "--json").stdout)
    assert (letter["service"], letter["task_id"], letter["reason"]) == ("prober", "t1", "lost")
    assert json.loads(logged_in("dead-letters", "ls", "--service", "scorer", "--json").stdout) == []
    shown = json.loads(logged_in("dead-letters", "show", letter["id"][:6], "--json").stdout)
    assert shown["task"]["outputs"] == {"measures": "k"}
    refused(logged_in("dead-letters", "retry", "--all"), 2, "this needs the queue and the object store")


def test_runs_are_listed_watched_and_cancelled_over_http(logged_in: Client, store: ObjectStore) -> None:
    store.put(run_path(RUN, "state.json"), json.dumps(STATE).encode())
    store.put(run_path(RUN, "config.json"), b'{"model": "demo", "concepts": ["contrast"]}')
    (row,) = json.loads(logged_in("ls", "runs", "--json").stdout)
    assert (row["id"], row["state"], row["model"]) == (RUN, "running", "demo")
    assert logged_in("cancel", RUN).returncode == 0
    assert store.exists(run_path(RUN, "cancel"))
    store.put(run_path(RUN, "state.json"), json.dumps({**STATE, "state": "done", "tasks_done": 4}).encode())
    assert "done: 4/4 tasks" in logged_in("watch", RUN).stdout
    refused(logged_in("gc", "--forget", RUN), 2, "has the address of its services only")
    refused(logged_in("cancel", "nothing"), 2, "no run 'nothing'")


def test_a_concept_is_checked_added_and_removed_over_http(logged_in: Client, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(900)]
    for name, first in (("p.txt", 0), ("n.txt", 400)):
        lines = (" ".join(words[first + 7 * row : first + 7 * row + 25]) for row in range(40))
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    given = ("mine", "--positives", "p.txt", "--negatives", "n.txt", "--definition", "It is said.", "--json")
    checked = logged_in("concept", "check", *given)
    assert json.loads(checked.stdout)["usable"], checked.stderr
    assert "registered" in logged_in("concept", "add", *given).stderr
    refused(logged_in("concept", "add", *given), 2, "the store has a concept mine already")
    assert "mine" in logged_in("ls", "concepts").stdout
    assert logged_in("concept", "rm", "mine").returncode == 0
    assert "mine" not in logged_in("ls", "concepts").stdout


def test_texts_and_vectors_are_computed_over_http(logged_in: Client, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("It rained, although the sun shone.\nThe sea was calm.\n")
    done = logged_in("embed", "--input", "t.txt", "--output", "v.npy", "--layer", "2")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "v.npy").shape[0] == 2
    labels = np.arange(24) % 2
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(24, 3)) + labels[:, None])
    np.save(tmp_path / "y.npy", labels)
    assert "d1.auroc" in logged_in("probe", "X.npy", "y.npy").stdout
    assert logged_in("direction", "X.npy", "--labels", "y.npy", "--output", "d.npy").returncode == 0
    done = logged_in("score", "It rained.", "--scorer", "contrast")
    assert done.returncode == 2 and "error: scorer: this store has no scorer 'contrast'" in done.stderr


def test_doctor_checks_what_a_client_uses(logged_in: Client) -> None:
    done = logged_in("doctor")
    assert "ok    pooler" in done.stdout and "names services only" in done.stdout
    assert "FAIL" not in done.stdout, done.stdout


@pytest.mark.parametrize("command", [("run", "--preset", "demo"), ("gc",)])
def test_other_commands_say_what_they_need(logged_in: Client, command: tuple[str, ...]) -> None:
    refused(logged_in(*command), 2, "set POOLBENCH_STORE and POOLBENCH_BROKER too")
