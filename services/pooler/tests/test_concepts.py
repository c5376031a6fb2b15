"""Concepts over HTTP: the checks and messages of the command line, and the documented commands."""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.servers.services import TOKEN, serving
from tests.waiting import PATIENCE_S

from poolbench.http.api import build_api
from poolbench.library.concepts import Library
from poolbench.storage import open_store
from poolbench_pooler.service import PoolerService

WORDS = [f"word{number}" for number in range(4000)]


def file(name: str, count: int, seed: int) -> dict[str, str]:
    rng = random.Random(seed)
    lines = (json.dumps({"text": " ".join(rng.sample(WORDS, 20))}) + "\n" for _ in range(count))
    return {"name": name, "content": "".join(lines)}


def body(**fields: Any) -> dict[str, Any]:
    texts = {"positives": file("p.jsonl", 60, 0), "negatives": file("n.jsonl", 60, 1)}
    return {"id": "mine", "definition": "It is said.", **texts, **fields}


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(open_store(str(tmp_path / "store")))


@pytest.fixture
def client(library: Library) -> TestClient:
    headers = {"Authorization": "Bearer token"}
    return TestClient(build_api(PoolerService(lambda: library), "token"), headers=headers)


def stored(library: Library) -> list[str]:
    return [info.path for info in library.store.list("")]


def test_a_concept_is_checked_added_listed_and_removed(client: TestClient, library: Library) -> None:
    checked = client.post("/check_concept", json=body()).json()
    assert (checked["usable"], checked["registered"], stored(library)) == (True, False, [])
    added = client.post("/concepts", json=body(neighbours=["hedging"])).json()
    assert added == {**checked, "registered": True}
    assert [(each["positives"], each["negatives"]) for each in added["splits"]] == [(30, 30), (15, 15), (15, 15)]
    assert client.get("/concepts").json()["concepts"] == [
        {"id": "mine", "definition": "It is said.", "neighbours": ["hedging"], "sensitive": False}
        | {"revision": added["revision"]}
    ]
    mine = library.find("mine")
    assert mine is not None and library.passages(mine).num_rows == 120
    assert client.delete("/concepts/mine").json() == {"removed": "mine"}
    assert stored(library) == []


def test_a_taken_name_is_409_and_changes_nothing(client: TestClient, library: Library) -> None:
    assert client.post("/concepts", json=body()).status_code == 200
    before = stored(library)
    for name in ("mine", "hedging"):
        again = client.post("/concepts", json=body(id=name, seed=1))
        assert (again.status_code, again.json()["error"]["code"]) == (409, "concept_taken")
    assert stored(library) == before


WRONG: dict[str, tuple[dict[str, Any], int, str]] = {
    "no text": ({"positives": {"name": "p.jsonl", "content": '{"text": "a"}\n{"body": 1}'}}, 400, "p.jsonl, line 2: "),
    "empty": ({"negatives": {"name": "n.csv", "content": "text\na\n  \n"}}, 400, "n.csv, line 3: 'text' is empty"),
    "html": ({"positives": {"name": "p.jsonl", "content": '{"text": "<p>a</p>"}'}}, 400, "p.jsonl, line 1: 'text' h"),
    "no json": ({"positives": {"name": "p.jsonl", "content": "hello"}}, 400, "p.jsonl, line 1: not JSON"),
    "surrogate": ({"positives": {"name": "p.jsonl", "content": '{"text": "\\ud800"}'}}, 400, "p.jsonl, line 1: a lone"),
    "long line": ({"positives": {"name": "p.jsonl", "content": "x" * 8_000_001}}, 400, "line 1: more than 8,000,000"),
    "same texts": ({"negatives": file("n.jsonl", 60, 0)}, 400, "n.jsonl, line 1 and p.jsonl, line 1 have the same"),
    "few": ({"positives": file("p.jsonl", 3, 0)}, 400, "not registered: nothing can be measured"),
    "one class": ({"negatives": None}, 400, "mine has no negatives"),
    "no files": ({"positives": None, "negatives": None}, 400, "names no texts"),
    "neighbour": ({"neighbours": ["hedgin"]}, 404, "unknown concept 'hedgin'; did you mean hedging"),
    "id": ({"id": "../mine"}, 422, "body.id"),
    "path": ({"positives": {"name": "../p.jsonl", "content": ""}}, 422, "body.positives.name"),
    "field": ({"colour": "red"}, 422, "body.colour"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests_say_where_and_store_nothing(client: TestClient, library: Library, name: str) -> None:
    fields, status, message = WRONG[name]
    for path in ("/check_concept", "/concepts"):
        if (name, path) == ("few", "/check_concept"):
            continue  # it says so in its answer
        answer = client.post(path, json=body(**fields))
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
    assert stored(library) == []


def test_what_cannot_be_measured_is_said_by_the_check(client: TestClient) -> None:
    checked = client.post("/check_concept", json=body(positives=file("p.jsonl", 3, 0))).json()
    assert not checked["usable"] and "error" in {remark["level"] for remark in checked["remarks"]}


def test_a_body_that_is_not_utf8_is_refused(client: TestClient, library: Library) -> None:
    latin = json.dumps(body()).encode().replace(b"word1 ", b"caf\xe9 ")
    assert client.post("/concepts", content=latin, headers={"Content-Type": "application/json"}).status_code == 400
    assert stored(library) == []


def test_removing_what_is_not_there_or_not_of_requests(client: TestClient) -> None:
    assert client.delete("/concepts/none_such").status_code == 404
    assert client.delete("/concepts/No").status_code == 422
    assert client.delete("/concepts/hedging").status_code == 404, "built-in concepts stay"


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_the_commands_for_http_work_as_typed(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "examples" / "messages", tmp_path / "docs" / "examples" / "messages")
    section = (DOCS / "own-concepts.md").read_text("utf-8").partition("## Over HTTP")[2]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found is not None
    store = open_store(str(tmp_path / "store"))
    with serving({"pooler": PoolerService(lambda: Library(store))}) as address:
        environment = {**os.environ, "B": address, "H": f"Authorization: Bearer {TOKEN}"}
        done = subprocess.run(
            ["bash", "-e", "-c", found[1]],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f'"registered":{value}') for value in ("false", "true")] == [1, 1]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [], "the reader's folder stays as it was"
    assert '"concepts":[{"id":"gratitude"' in done.stdout and done.stdout.endswith('{"removed":"gratitude"}')
