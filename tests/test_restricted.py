"""No verb of any service, and no command of the driver, gives out what belongs to a sensitive concept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from poolbench.contracts.tables import PASSAGES, TEXTS, table_from_rows
from poolbench.contracts.wire import SERVICES
from poolbench.errors import RestrictedError
from poolbench.runtime.http import build_api
from poolbench.runtime.service import load_service
from poolbench.storage import Artifacts, open_store
from poolbench_driver.cli import app

SECRET, SCORER = "SECRET-PASSAGE", "restricted.scorer.train.1"
PASSAGES_KEY, TEXTS_KEY = "restricted.corpus.passages.1", "restricted.steerer.generate.1"

#: Every field of a request that names an artifact. A new one is refused for restricted keys as these are, and added.
KEY_FIELDS = {("scorer", "passages_key"), ("scorer", "scorer"), ("scorer", "scorers")}
_NAMES_ARTIFACTS = re.compile(r"(^|_)(keys?|artifacts?|path|uri|store|folder|scorers?)$")


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    """A store with restricted passages, texts and a scorer, as a run leaves it; the environment names it."""
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POOLBENCH_BROKER", f"filesystem://{tmp_path}/queue")
    monkeypatch.setenv("POOLBENCH_HTTP", "http://127.0.0.1:1")
    monkeypatch.setenv("POOLBENCH_TOKEN", "t")
    made = Artifacts(open_store(str(tmp_path / "store")))
    made.write_table(PASSAGES_KEY, table_from_rows([{"passage_id": SECRET, "text": SECRET}], PASSAGES))
    made.write_table(TEXTS_KEY, table_from_rows([{"text_id": "t", "text": SECRET}], TEXTS))
    made.write(SCORER, {"config.json": json.dumps({"concept": "toxicity"}).encode()})
    return made


@pytest.fixture(params=SERVICES)
def api(request: pytest.FixtureRequest, artifacts: Artifacts) -> Iterator[tuple[str, FastAPI]]:
    yield request.param, build_api(load_service(request.param), "t")


def fields(schema: Any) -> Iterator[str]:
    """The names of all fields and parameters below a part of an OpenAPI document."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        if "in" in schema and "name" in schema:
            yield schema["name"]
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from fields(part)


def requests_of(api: FastAPI) -> dict[str, Any]:
    """What the verbs take: their parameters, and the schemas that request bodies are made of."""
    document = api.openapi()
    verbs = [verb for path in document["paths"].values() for verb in path.values()]
    bodies = json.dumps([verb.get("requestBody") for verb in verbs])
    schemas, wanted = document["components"]["schemas"], set(re.findall(r"schemas/(\w+)", bodies))
    while more := set(re.findall(r"schemas/(\w+)", json.dumps([schemas[name] for name in wanted]))) - wanted:
        wanted |= more
    return {"parameters": [verb.get("parameters", []) for verb in verbs], "bodies": [schemas[n] for n in wanted]}


def test_only_these_fields_of_any_request_name_an_artifact(api: tuple[str, FastAPI]) -> None:
    service, application = api
    found = {(service, name) for name in fields(requests_of(application)) if _NAMES_ARTIFACTS.search(name)}
    assert found <= KEY_FIELDS


@pytest.mark.parametrize("key", [PASSAGES_KEY, "restricted.corpus.passages.none", f"x/../../restricted/{PASSAGES_KEY}"])
def test_no_request_trains_on_restricted_passages(artifacts: Artifacts, key: str) -> None:
    body = {"params": {"concept": "contrast"}, "passages_key": key}
    _refused(_scorer().post("/train", json=body), {403, 400, 422})


@pytest.mark.parametrize("name", ["toxicity", SCORER, "restricted.scorer.train.none", f"x/../../restricted/{SCORER}"])
def test_no_request_scores_by_a_sensitive_scorer(artifacts: Artifacts, name: str) -> None:
    _refused(_scorer().post("/score", json={"scorer": name, "texts": ["a"]}), {403, 400, 404})
    _refused(_scorer().post("/score", json={"scorers": [name], "texts": ["a"]}), {403, 400, 404, 422})


def test_requests_go_through_a_store_that_cannot_reach_restricted_artifacts(artifacts: Artifacts) -> None:
    """Should a check be forgotten one day: the scorer, the one service whose requests read the store, has no access."""
    store: Artifacts = load_service("scorer").shelf.artifacts  # type: ignore[attr-defined]
    for attempt in (store.read_table, store.exists, store.manifest, store.delete):
        with pytest.raises(RestrictedError):
            attempt(SCORER)


def test_sensitive_passages_that_come_with_a_request_are_not_kept(artifacts: Artifacts, tmp_path: Path) -> None:
    before = {path for path in (tmp_path / "store").rglob("*") if path.is_file()}
    passages = [{"text": SECRET, "label": n % 2} for n in range(80)]
    _refused(_scorer().post("/train", json={"params": {"concept": "depression"}, "passages": passages}), {403})
    assert {path for path in (tmp_path / "store").rglob("*") if path.is_file()} == before


def _scorer() -> TestClient:
    return TestClient(build_api(load_service("scorer"), "t"), headers={"Authorization": "Bearer t"})


def _refused(answer: Any, statuses: set[int]) -> None:
    assert answer.status_code in statuses, answer.text
    assert SECRET not in answer.text


COMMANDS = [
    ["ls", "activations", "--json"],
    ["ls", "scorers", "--json"],
    ["ls", "concepts", "--json"],
    ["ls", "runs", "--json"],
    ["status", "--json"],
    ["gc"],
    ["corpus", "export", "OUT", "--concepts", "toxicity"],
    ["corpus", "build", "OUT", "--concepts", "depression"],
    ["score", "--input", "TEXTS", "--scorer", SCORER],
    ["report"],
    ["leaderboard"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_no_command_shows_or_writes_them(artifacts: Artifacts, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "texts.txt").write_text("a text\n")
    places = {"OUT": str(tmp_path / "out"), "TEXTS": str(tmp_path / "texts.txt")}
    done = CliRunner().invoke(app, [places.get(part, part) for part in command])
    shown = done.output + str(done.exception or "")
    assert SECRET not in shown
    out = [file for file in tmp_path.rglob("*") if file.is_file() and (tmp_path / "store") not in file.parents]
    assert not any(SECRET.encode() in file.read_bytes() for file in out)
    assert not list((tmp_path / "out").rglob("*.jsonl"))


def test_a_run_without_access_is_refused_before_anything_is_sent(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLBENCH_RESTRICTED_STORE", "none")
    options = ["--concepts", "toxicity", "--strategies", "A1_mean", "--limit", "60", "--output", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["run", "--preset", "demo", *options])
    assert isinstance(done.exception, RestrictedError), done.output
    assert "POOLBENCH_RESTRICTED_STORE" in str(done.exception)
    assert not (tmp_path / "runs").exists()
    allowed = CliRunner().invoke(app, ["run", "--preset", "demo", "--dry-run", *options, "--concepts", "contrast"])
    assert "toxicity" not in str(allowed.exception or "")


def test_secrets_of_the_store_are_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from poolbench.runtime.settings import ClusterSettings

    secret = {"POOLBENCH_RESTRICTED_S3_ACCESS_KEY": "own-key", "POOLBENCH_RESTRICTED_S3_SECRET_KEY": "own-secret"}
    environment = {**secret, "POOLBENCH_STORE": "/s", "POOLBENCH_BROKER": "filesystem:///q"}
    environment["POOLBENCH_RESTRICTED_STORE"] = "s3://restricted/pool"
    for name, value in {**environment, "POOLBENCH_STATE": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    found = ClusterSettings.load()
    assert found.restricted_uri == "s3://restricted/pool" and "own-" not in repr(found)


def test_a_table_of_a_sensitive_concept_names_no_passage() -> None:
    from poolbench_driver.assemble.disclosure import opaque, redacted

    reason = "no states of passage 'toxicity-civil-1234-pos' in \"file 1\"; the concept's text isn't there"
    row = {"concept": "toxicity", "reason": reason}
    assert redacted(row)["reason"] == "no states of passage (withheld) in (withheld); the concept's text isn't there"
    for other in ({"concept": "contrast"}, {"concept": "contrast", "neighbour": "causation"}):
        assert redacted({**row, **other}) == {**row, **other}
    assert "1234" not in redacted({**row, "concept": "contrast", "neighbour": "toxicity"})["reason"]
    assert opaque("key", "id") == opaque("key", "id") != opaque("other", "id")
    assert re.fullmatch("[0-9a-f]{16}", opaque("key", "toxicity-civil-1234-pos"))


def test_the_columns_of_a_runs_tables_hold_no_text() -> None:
    """What the per-text and per-passage files are made of is closed: ids, numbers, names."""
    from poolbench.contracts.tables import PROBE_SCORES, SCORES

    assert set(SCORES.names) == {"text_id", "scorer", "score"}
    assert set(PROBE_SCORES.names) == {"passage_id", "split", "fold", "label", "group", "score"}
    assert all(not pa.types.is_nested(field.type) for schema in (SCORES, PROBE_SCORES) for field in schema)
