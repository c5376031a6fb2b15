"""The main job on a real cluster: it ends, it resumes, it survives kill -9, and only figures leave it."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from bench.tests.benches import smallest
from deploy.local.head import exposed
from deploy.local.state import Cluster, load
from driver.tests.console.conftest import chromium
from services.scorer.tests.conftest import save_tiny_bert
from tests.examples import install_example
from tests.figures import Rows, assert_same, rows_of
from tests.pages import REPOSITORY
from tests.ports import unnamed
from tests.servers import local
from tests.servers.hub import serving
from tests.servers.stranger import grpc_answers
from tests.waiting import PATIENCE_S, wait_until

from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted

LONG_S = 1200  # a guard against hanging
DRIVER = Path(sys.executable).with_name("poolbench-driver")
STRATEGIES = "A1_mean,L5_keyword,S1_attention"
Budget = dict[str, Any] | None  # None: the demo's own
#: The demo with fewer and shorter texts.
BUDGET: Budget = {
    "name": "end-to-end",
    "strengths": [0.25, 0.5],
    "null_strengths": [0.5],
    "reference_strength": 0.5,
    "num_scorer": 100,
    "num_openings": 6,
    "max_tokens": 16,
    "num_continuations": 40,
    "num_bootstrap": 200,
}
SMALL = ("--limit", "60", "--concepts", "contrast", "--strategies", STRATEGIES)

pytestmark = [pytest.mark.lane(name="cluster")]


@dataclass(frozen=True)
class Running:
    """A cluster of this test module."""

    state: Path
    output: Path
    port: int  # of its own: other tests start clusters at the same time

    @property
    def environment(self) -> dict[str, str]:
        own = {"POOLBENCH_STATE": str(self.state), "POOLBENCH_HTTP_PORT": str(self.port)}
        return {**os.environ, **own, **local.WRONG, "HF_HUB_CACHE": str(self.output.with_name("hub"))}

    @property
    def settings(self) -> ClusterSettings:
        with patch.dict(os.environ, self.environment):
            return ClusterSettings.load()

    def driver(self, *arguments: str, timeout_s: float = LONG_S) -> subprocess.CompletedProcess[str]:
        return self.call([str(DRIVER), *arguments], timeout_s)

    def small(self, *arguments: str, budget: Budget) -> list[str]:
        """Arguments of a small run, which the given ones change."""
        config = self.output / "small.yaml"
        config.write_text(yaml.safe_dump({"preset": "demo"} | ({"budget": budget} if budget else {})))
        return ["run", str(config), *SMALL, *arguments, "--output", str(self.output), "--display", "json"]

    def call(
        self, command: list[str], timeout_s: float, cwd: Path = REPOSITORY, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *arguments: str, budget: Budget = BUDGET) -> tuple[subprocess.CompletedProcess[str], str]:
        """A run, and its results digest."""
        done = self.driver(*self.small(*arguments, budget=budget))
        assert done.returncode == 0, done.stderr[-3000:]
        state = json.loads((self.output / "latest" / "state.json").read_text())
        return done, state["results_digest"]

    def figures(self) -> Rows:
        """Return the rows of the latest results by cell."""
        return rows_of(self.output / "latest")

    def kill_replica(self, service: str) -> bool:
        """Kills the service's replica with -9; false when there was none."""
        cluster = load(self.state)
        assert cluster is not None
        for process in cluster.processes():
            if f"ServeReplica:{service}:" in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)
                return True
        return False


@pytest.fixture(scope="module")
def running(running_cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Running:
    cluster = load(running_cluster)
    assert cluster is not None
    return Running(running_cluster, tmp_path_factory.mktemp("runs"), int(cluster.http.rpartition(":")[2]))


def sent(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the kinds of the tasks that a run executed rather than found done."""
    return [kind for line in done.stderr.splitlines() for kind in sent_by(line)]


def sent_by(line: str) -> list[str]:
    """Return the kind of the task whose execution a line reports, if it does."""
    event = json.loads(line) if line.startswith("{") else {}
    return [event["kind"]] if event.get("event") == "done" and not event["reused"] else []


@pytest.fixture(scope="module")
def first(running: Running) -> str:
    """Digest of the undisturbed run."""
    return running.run()[1]


def test_a_second_cluster_up_is_a_no_op(running: Running) -> None:
    again = local.command("up", running.environment)
    assert again.returncode == 0
    assert "already up" in again.stdout


def test_the_run_measures_all_metrics(running: Running, first: str) -> None:
    table = pq.read_table(running.output / "latest" / "results.parquet")
    metrics = set(table["metric"].to_pylist())
    expected = {"d1.auroc", "d1.auroc_permuted", "d2.scp", "d2.best_gain", "d3.ld", "d3.rep_lc", "scorer.gate"}
    assert expected <= metrics
    page = (running.output / "latest" / "report" / "index.html").read_text()
    assert "Board<" in page and "L5_keyword" in page


def test_the_console_shows_the_run_to_who_has_the_token(running: Running, first: str) -> None:
    address, token = running.settings.http_address, running.settings.token
    run = (running.output / "latest").resolve().name
    asked = httpx.get(f"{address}/console/runs/{run}/")
    assert asked.status_code == 303 and asked.headers["location"] == "../../login"
    assert httpx.get(f"{address}/console/api/runs/{run}/").status_code == 401
    with httpx.Client(headers={"Origin": address}, timeout=LONG_S) as reader:
        assert reader.post(f"{address}/console/login", data={"token": "wrong"}).status_code == 401
        assert reader.post(f"{address}/console/login", data={"token": token}).status_code == 303
        view = reader.get(f"{address}/console/api/runs/{run}/").raise_for_status().json()
        assert reader.get(f"{address}/extractor/docs").status_code == 200
        assert reader.post(f"{address}/extractor/embed", json={"texts": ["a"]}).status_code == 401
    assert view["answer"] == json.loads((running.output / "latest" / "report" / "view.json").read_text())["answer"]
    assert (running.output / "latest" / "report" / "index.html").read_text().count(token) == 0


@pytest.mark.lane(name="suites")
def test_a_suite_of_another_package_runs_and_continues(running: Running, tmp_path: Path) -> None:
    """docs/examples/best-layer, found by its entry point: nothing else knows it."""
    site, output = install_example("best-layer", tmp_path), running.output / "layers"
    command = [str(DRIVER), "run", "--suite", "best_layer", "--pooling", "P1_last_token", "--limit", "60"]
    command += ["--output", str(output), "--display", "json"]
    first = running.call(command, LONG_S, PYTHONPATH=str(site))
    assert first.returncode == 0, first.stderr[-3000:]
    assert {"extractor.extract", "prober.probe"} <= set(sent(first))
    assert re.search(r"layer \d comes first of 4 on best_layer.auroc, over 2 concepts", first.stdout)
    again = running.call(command, LONG_S, PYTHONPATH=str(site))
    digests = [re.search(r"results digest: (\w+)", done.stdout) for done in (first, again)]
    assert sent(again) == [] and digests[0] and digests[1] and digests[0][1] == digests[1][1]
    rows = pq.read_table(output / "latest" / "results.parquet").to_pylist()
    assert len({row["entrant"] for row in rows if row["metric"] == "best_layer.auroc"}) == 4
    page = (output / "latest" / "report" / "index.html").read_text()
    assert re.search(r'<th scope="row">(<a [^>]*>)?layer 1</', page) and "P1_last_token" in page
    for name in ("leaderboard", "ranks"):
        shown = running.call([str(DRIVER), name, "--output", str(output)], LONG_S, PYTHONPATH=str(site))
        assert shown.returncode == 0 and "layer 1" in shown.stdout, shown.stderr
    same = [str(DRIVER), "compare", "latest", "latest", "--output", str(output), "--check"]
    assert running.call(same, LONG_S, PYTHONPATH=str(site)).returncode == 0


#: Two fine-tunes and their null: 18 states of the model.
SHIFT = ("--suite", "humanoid", "--after", "bed-high-0,bed-high-1", "--num-random", "5", "--null")


def killed_and_repeated(running: Running, command: list[str]) -> Iterator[subprocess.CompletedProcess[str]]:
    """Kill a run as soon as it has sent work, then yield the same command twice."""
    process = subprocess.Popen(command, env=running.environment, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(sent_by(line) for line in iter(process.stderr.readline, "")), "it ended before it did anything"
    process.kill()
    process.communicate()
    yield from (running.call(command, LONG_S) for _ in range(2))


@pytest.mark.lane(name="suites")
def test_a_fine_tune_is_set_beside_neutral_ones_and_a_killed_run_ends_with_the_same_digest(running: Running) -> None:
    output, neutral = running.output / "shift", [f"neutral-{number}" for number in range(5)]
    command = [str(DRIVER), "run", *SHIFT, ",".join(neutral), "--output", str(output), "--display", "json"]
    done, again = killed_and_repeated(running, command)
    assert done.returncode == 0, done.stderr[-3000:]
    digest = re.search(r"results digest: (\w+)", done.stdout)
    assert sent(again) == [] and digest and digest[0] in again.stdout
    artifacts = Artifacts(open_store(running.settings.store_uri))
    read = [i.path.split("/")[1] for i in artifacts.store.list("artifacts/prober.valence") if "manifest" in i.path]
    artifacts.delete(read[0])  # the figures are made again from the same vectors
    once_more = running.call(command, LONG_S)
    assert sent(once_more) == ["prober.valence"] and digest[0] in once_more.stdout

    rows = pq.read_table(output / "latest" / "results.parquet").to_pylist()
    shift = {row["entrant"]: row["value"] for row in rows if row["metric"] == "shift.variance"}
    assert min(shift["bed-high-0"], shift["bed-high-1"]) > max(shift[name] for name in neutral)
    words = pq.read_table(output / "latest" / "words.parquet").to_pylist()
    for name in ("bed-high-0", "bed-high-1"):
        own = [row for row in words if row["entrant"] == name and row["change"] is not None]
        assert max(own, key=lambda row: row["change"])["word"] == "bed"
    page = (output / "latest" / "report" / "index.html").read_text()
    assert "2 of 2 fine-tunes moved the words more than all 5 neutral ones do" in page and "<svg" in page


#: How far random labels can be compressed: not at all.
RANDOM_LABELS = ("probe.compression", "planted-random", "demo A1_mean final")


@pytest.mark.lane(name="suites")
def test_probing_sets_rank_what_reads_the_order_of_words_first(running: Running) -> None:
    """Static word vectors are at chance where both classes have the same words; a killed run ends as it would have."""
    output = running.output / "probing"
    command = ["run", "--suite", "holmes", "--sets", "planted-role,planted-random,planted-pos"]
    command = [str(DRIVER), *command, "--output", str(output), "--display", "json"]
    done, again = killed_and_repeated(running, command)
    digest = re.search(r"results digest: (\w+)", done.stdout)
    assert sent(again) == [] and digest and digest[0] in again.stdout, done.stderr[-3000:]
    rows = pq.read_table(output / "latest" / "results.parquet").to_pylist()
    score = {(row["task"], row["entrant"]): row["value"] for row in rows if row["metric"] == "holmes.score"}
    assert score["planted-role", "demo A1_mean embedding"] < 0.6
    assert score["planted-role", "demo A1_mean final"] > 0.9
    assert score["planted-pos", "demo A1_mean final"] > 0.8
    (labels,) = (row for row in rows if (row["metric"], row["task"], row["entrant"]) == RANDOM_LABELS)
    assert 0.85 < labels["value"] < 1.1
    rates = [row for row in rows if row["metric"] == "holmes.winning_rate"]
    assert min(rates, key=lambda row: row["value"])["layer"] == -1
    texts = pq.read_table(output / "latest" / "predictions.parquet").to_pylist()
    assert {row["set"] for row in texts} == {"planted-role", "planted-random", "planted-pos"}


@pytest.mark.lane(name="suites")
def test_trained_autoencoders_separate_stories_better_than_random_directions(running: Running) -> None:
    """By the corrected and the published definition; a killed run ends as it would have."""
    output = running.output / "stories"
    command = [str(DRIVER), "run", "--suite", "ce-bench", "--protocol", "published"]
    done, again = killed_and_repeated(running, [*command, "--output", str(output), "--display", "json"])
    digest = re.search(r"results digest: (\w+)", done.stdout)
    assert sent(again) == [] and digest and digest[0] in again.stdout, done.stderr[-3000:]
    # By the published definition, tokens that all stories begin with decide the other score of some autoencoders.
    for name, metric in (("results", "ce.interpretability"), ("published", "ce.contrastive")):
        rows = pq.read_table(output / "latest" / f"{name}.parquet").to_pylist()
        score = {row["entrant"]: row["value"] for row in rows if row["metric"] == metric}
        assert len(score) == 13  # six autoencoders, six of random directions, and the coordinates
        trained = [each for each in score if f"{each} random" in score]
        assert all(score[each] > score[f"{each} random"] for each in trained), score
    width = {row["entrant"]: row["value"] for row in rows if row["metric"] == "ce.num_features"}
    assert sorted(width[each] for each in trained) == [512] * 3 + [2048] * 3
    assert "<mark>" in (output / "latest" / "report" / "index.html").read_text()


def test_the_cluster_listens_on_loopback_and_its_grpc_asks_for_the_token(running: Running, first: str) -> None:
    """After a run, so that vLLM's engine and every worker is there."""
    cluster = load(running.state)
    assert cluster is not None and first
    assert exposed(cluster) == []
    assert unnamed(cluster) == [], "a port that tests/ports.py does not name"
    folder = Path(cluster.ray_temp).parent
    assert {path.stat().st_mode & 0o777 for path in (folder, running.state, Path(cluster.logs))} == {0o700}
    answers = [grpc_answers(f"127.0.0.1:{port}") for port in grpc_ports(cluster)]
    assert len(answers) >= 10 and all("UNAUTHENTICATED" in seen and "OK" not in seen for seen in answers), answers


def grpc_ports(cluster: Cluster) -> list[int]:
    """Ports of gRPC servers: those listen on an IPv6 socket, the HTTP servers of Ray on an IPv4 one."""
    sockets = [one for process in cluster.processes() for one in process.net_connections("inet6")]
    return sorted({one.laddr.port for one in sockets if one.status == "LISTEN"})


@pytest.mark.usefixtures("alone")
@pytest.mark.lane(name="suites")
def test_killed_replicas_leave_the_results_as_they_were(running: Running, first: str) -> None:
    store, before = open_store(running.settings.store_uri), running.figures()
    for info in list(store.list("artifacts/")):
        store.delete(info.path)
    killed: list[str] = []
    stop = threading.Event()

    def strike() -> None:
        for service in ("extractor", "steerer"):
            while not stop.wait(0.05):
                if _progressed(store, service) and running.kill_replica(service):
                    killed.append(service)
                    break

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        running.run()
    finally:
        stop.set()
        thread.join()
    assert killed == ["extractor", "steerer"]
    assert_same(running.figures(), before)


@pytest.mark.usefixtures("alone")
@pytest.mark.lane(name="suites")
def test_a_steerer_that_is_killed_ends_a_text_of_the_playground(running: Running) -> None:
    """What was streamed stays, the page says that the text ended early, and it goes on with the next replica."""
    console = f"{running.settings.http_address}/console"
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(LONG_S * 1000)
        page.goto(console)
        page.get_by_label("Token").fill(running.settings.token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{console}/")
        page.goto(f"{console}/playground#max_tokens=512&temperature=1")
        generate, status = (
            page.get_by_role("button", name=re.compile("Generate|Again")),
            page.locator("main [role=status]"),
        )
        generate.click()
        page.locator("section.text p").first.filter(has_text=re.compile(r"\S")).wait_for()
        assert running.kill_replica("steerer")
        page.get_by_text("1 of 1 texts ended early.").wait_for()
        assert "The text ended early" in page.locator("section.text [role=alert]").inner_text()
        assert page.locator("section.text p").first.inner_text()

        def is_generated() -> bool:
            page.reload()
            generate.click()
            status.filter(has_text=re.compile("Done|early")).wait_for()
            return "Done." in status.inner_text()

        wait_until(is_generated, LONG_S)


def _progressed(store, service: str) -> bool:  # type: ignore[no-untyped-def]
    """Whether the service has begun to commit: it is then in the middle of its work."""
    return any(store.list(f"artifacts/{service}."))


def test_the_callers_environment_changes_neither_the_model_runner_nor_the_proxy(running: Running) -> None:
    base, headers = running.settings.http_address, {"Authorization": f"Bearer {running.settings.token}"}
    body = {"prompts": ["The report describes"], "model": "demo", "max_tokens": 8}
    assert httpx.post(f"{base}/steerer/generate", json=body, headers=headers, timeout=PATIENCE_S).is_success
    ask = partial(httpx.get, f"{base}/steerer/health", headers=headers, timeout=PATIENCE_S)
    wait_until(lambda: ask().json().get("runner") == "v1")
    cluster = load(running.state)
    assert cluster is not None
    commands = [" ".join(process.cmdline()) for process in cluster.processes()]
    assert any("ProxyActor" in command for command in commands)
    assert not any("haproxy" in command.lower() for command in commands)


D1_ONLY = ("--metrics", "d1", "--layers", "2,4")


#: Two concepts, one of them sensitive, and their neighbours.
PUBLISHED = ("contrast", "toxicity", "causation", "negation_density", "frustration", "depression")
CARD_TABLE = """\
table: small
models: [{name: demo, label: demo, preset: demo, best_layer: 2, layers: [2]}]
columns:
  - {id: D1_auroc, definition: AUROC, differs: "", ours: {published: d1.auroc}}
  - {id: D2_scp_c, definition: SCP, differs: "", ours: {published: d2.scp}}
  - {id: D3_LD, definition: D3, differs: "", scp: d2.scp, ours: {published: d3.ld}}
strategies: [{id: A1_mean, ours: A1_mean}]
title: A small table
"""


def published_corpus(folder: Path) -> Path:
    """A small copy of the published layout: its fields and splits only, sensitive concepts beside the others."""
    fields = ("id", "text", "label", "domain", "token_count", "matched_pair_id", "split")
    tables = [build_planted(name, seed=0, num_train=60, num_test=40, num_scorer=0) for name in PUBLISHED]
    manifest = CorpusManifest(revision="1", tokenizer="words", window=(1, 500))
    with pytest.MonkeyPatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        write_corpus(pa.concat_tables(tables), folder, manifest)
    for file in folder.rglob("*.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({name: each[name] for name in fields}) + "\n" for each in records))
    return folder


def published_classifiers(folder: Path) -> Path:
    """Small BERT classifiers with random weights, in the layout of the published ones."""
    for seed, name in enumerate(PUBLISHED):
        save_tiny_bert(folder / name, seed=seed, initializer_range=0.5)
    return folder


@pytest.mark.lane(name="suites")
def test_the_card_on_a_small_copy_of_what_is_published(running: Running, tmp_path: Path) -> None:
    """The documented commands, from the hub to the cells of a table."""
    classifiers = "nips234678/poolbench-bert-scorers"
    copies = {
        "datasets/nips234678/poolbench": published_corpus(tmp_path / "corpus"),
        classifiers: published_classifiers(tmp_path / "classifiers"),
    }
    place = tmp_path / "work"
    place.mkdir()

    def command(line: str, program: Path = DRIVER, **environment: str) -> str:
        done = running.call([str(program), *shlex.split(line)], LONG_S, place, **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    with serving(copies) as hub:
        allowed = {**hub.environment, "POOLBENCH_SENSITIVE": "true"}
        command("corpus import hf:nips234678/poolbench corpora/published", **allowed)
        command(f"download {classifiers}", DRIVER.with_name("hf"), **hub.environment)
    small = "--set budget.max_tokens=8 --set budget.num_openings=4 --set budget.strengths=[.5,1,2,3]"
    card = "run --preset card --model demo --strategies A1_mean,P1_last_token --concepts contrast,toxicity"
    card += " --layers 2 --set steering_layer=2"
    refused = running.call([str(DRIVER), *shlex.split(card)], LONG_S, place)
    assert refused.returncode == 2 and "texts to train the scorers of contrast, toxicity on" in refused.stderr
    command(f"{card} --scorers published {small} --display none")
    rows = pq.read_table(place / "runs/latest/published.parquet").to_pylist()
    values = {(row["metric"], row["concept"]) for row in rows if row["value"] is not None}
    wanted = {(m, c) for m in ("d1.auroc", "d2.scp", "d3.ld", "d3.lc") for c in ("contrast", "toxicity")}
    assert values >= wanted, {row["reason"] for row in rows}
    changed = {"budget.strengths", "budget.num_openings", "budget.max_tokens", "steering_layer"}
    differs = [json.loads(row["params"])["differs"] for row in rows]
    assert all(each.keys() == changed for each in differs)
    (tmp_path / "source.yaml").write_text(CARD_TABLE)
    cells = "strategy,concept,D1_auroc,D2_scp_c,D3_LD\nA1_mean,contrast,.5,.1,.2\nA1_mean,toxicity,.6,.1,.2\n"
    (tmp_path / "cells-demo.csv").write_text(cells)
    found = json.loads(command(f"reproduce --table {tmp_path} --model demo --display json"))
    assert [cell["difference"] is not None for cell in found["cells"]] == [True] * 6, found["cells"]
    assert not list((place / "runs").rglob("*toxicity*")), "only figures leave the store"


@pytest.mark.usefixtures("alone")
@pytest.mark.lane(name="suites")
def test_a_run_waits_for_a_cluster_that_died_and_is_started_again(running: Running) -> None:
    """All of its processes are killed; `cluster-up` clears the rest away, and the same driver goes on."""
    store = open_store(running.settings.store_uri)
    running.run(*D1_ONLY)
    before = running.figures()
    for info in list(store.list("artifacts/")):
        if info.path.startswith(("artifacts/extractor.", "artifacts/prober.")):
            store.delete(info.path)

    def strike() -> subprocess.CompletedProcess[str]:
        wait_until(lambda: _progressed(store, "extractor"), LONG_S)
        cluster = load(running.state)
        assert cluster is not None
        for process in cluster.processes():
            process.kill()
        return local.command("up", running.environment)

    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(strike)
        running.run(*D1_ONLY)
    assert "clearing away a cluster" in started.result().stdout
    assert_same(running.figures(), before)


def test_interrupt_leaves_a_run_that_resumes(running: Running, first: str) -> None:
    seed = str(random.randrange(10**6))  # the store may know runs of earlier tests
    process = subprocess.Popen(
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        ["env", "--default-signal=INT", str(DRIVER), *running.small("--seed", seed, budget=BUDGET)],
        env=running.environment,
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    finished = next((line for line in iter(process.stderr.readline, "") if sent_by(line)), None)
    assert finished is not None, "it ended before it did anything"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    done, _ = running.run("--seed", seed)
    assert sent(done)
    task = json.loads(finished)["task"]
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["reused"] for event in events if event.get("task") == task] == [True]


# With the budget of the demo. Whether its scorer passes the gate is not what this tests.
SENSITIVE = ("--concepts", "depression", "--metrics", "d1,d2", "--strategies", "A1_mean")


@pytest.mark.lane(name="suites")
def test_a_sensitive_concept_is_measured_and_leaves_only_figures(running: Running) -> None:
    """Its scores are public; its vectors are not listed, and its passages are in no table or page of the run."""
    done, digest = running.run(*SENSITIVE, budget=None)
    assert "steerer.generate" in sent(done)
    artifacts = Artifacts(open_store(running.settings.store_uri))
    keys = {key for key, _ in artifacts.objects() if key.startswith("restricted.")}
    steered = {key for key in keys if "steerer.generate" in key}
    _assert_not_listed(running, {name for key in steered for name in _hashes(artifacts, key)})
    passages = [key for key in keys if "corpus.passages" in key]
    _assert_nowhere(running, [text for key in passages for text in artifacts.read_table(key)["text"].to_pylist()[:40]])
    rows = pq.read_table(running.output / "latest" / "results.parquet").to_pylist()
    statuses = {row["status"] for row in rows if row["metric"] == "d2.scp"}
    assert statuses and statuses <= {"ok", "scorer_invalid"}
    again, same = running.run(*SENSITIVE, budget=None)
    assert sent(again) == [] and same == digest


@pytest.mark.lane(name="suites")
def test_benchmarks_of_a_running_cluster_write_their_ratios(running: Running, first: str, tmp_path: Path) -> None:
    config, named = tmp_path / "run.yaml", {"concepts": ["contrast"], "strategies": STRATEGIES.split(",")}
    config.write_text(yaml.safe_dump({"preset": "demo", "budget": BUDGET, "limit": 60, **named}))
    report = smallest("adhoc", tmp_path, "--running", "--config", str(config), **running.environment)
    assert all(report["figures"]["tasks_sent"].values())
    smallest("idle", tmp_path, **running.environment)
    smallest("served_steer", tmp_path, **running.environment)
    smallest("console", tmp_path, "--run", str(running.output / "latest"))


def _hashes(artifacts: Artifacts, key: str) -> set[str]:
    table = artifacts.read_table(key)
    return set(filter(None, table["vector_hash"].to_pylist())) if "vector_hash" in table.column_names else set()


def _assert_not_listed(running: Running, hashes: set[str]) -> None:
    settings = running.settings
    headers = {"Authorization": f"Bearer {settings.token}"}
    listed = httpx.get(f"{settings.http_address}/steerer/vectors", headers=headers, timeout=PATIENCE_S).json()[
        "vectors"
    ]
    assert hashes and not hashes & {entry["vector_id"] for entry in listed}
    steering = {"vector_id": next(iter(hashes)), "layer": 2, "alpha": 1.0}
    body = {"prompts": ["The report"], "model": "demo", "steering": steering}
    answer = httpx.post(f"{settings.http_address}/steerer/generate", json=body, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 404


def _assert_nowhere(running: Running, texts: list[str]) -> None:
    """No long stretch of the passages stands in the run's folder."""
    assert texts
    stretches = [text[len(text) // 2 :][:60].encode() for text in texts]
    for file in running.output.rglob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            assert not any(stretch in content for stretch in stretches), file
