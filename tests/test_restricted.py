"""No verb of any service, and no command of the driver, gives out what belongs to a sensitive concept."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import PASSAGES, TEXTS, table_from_rows
from poolbench.contracts.wire import SERVICES
from poolbench.errors import CellError, RestrictedError
from poolbench.http.api import build_api
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.states import KeptPassage, read_states, states_table
from poolbench.storage import Artifacts, open_store
from poolbench.worker.service import load_service
from poolbench.worker.worker import Failure
from poolbench_driver.cli import app
from poolbench_driver.contract.source import opaque, redacted
from poolbench_driver.suites.poolbench.measures.cosines import direction_vector
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.tables import directions_table, measures_table

REPOSITORY = Path(__file__).resolve().parents[1]
SECRET, SCORER = "SECRET-PASSAGE", "restricted.scorer.train.1"
PASSAGES_KEY, TEXTS_KEY = "restricted.corpus.passages.1", "restricted.steerer.generate.1"

#: Every field of a request that names an artifact. A new one is refused for restricted keys as these are, and added.
KEY_FIELDS = {("pooler", "path"), ("scorer", "passages_key"), ("scorer", "scorer"), ("scorer", "scorers")}
_NAMES_ARTIFACTS = re.compile(r"(^|_)(keys?|artifacts?|path|uri|store|folder|scorers?)$")
#: Options of the OpenAI API with such names: what is sent in them is not read.
_OPTIONS = {("steerer", "store"), ("steerer", "prompt_cache_key")}


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
    assert found - _OPTIONS <= KEY_FIELDS


@pytest.mark.parametrize("key", [PASSAGES_KEY, "restricted.corpus.passages.none", f"x/../../restricted/{PASSAGES_KEY}"])
def test_no_request_trains_on_restricted_passages(artifacts: Artifacts, key: str) -> None:
    body = {"params": {"concept": "contrast"}, "passages_key": key}
    _refused(_scorer().post("/train", json=body), {403, 400, 422})


PATHS = [f"restricted/{PASSAGES_KEY}/manifest.json", f"artifacts/{PASSAGES_KEY}", "restricted", "runs/../restricted/x"]


@pytest.mark.parametrize("path", [*PATHS, "runs/x/../../restricted/y", "/etc/passwd", "concepts/x/passages.jsonl", ""])
def test_no_request_reads_more_than_records(artifacts: Artifacts, path: str) -> None:
    pooler = TestClient(build_api(load_service("pooler"), "t"), headers={"Authorization": "Bearer t"})
    _refused(pooler.get("/record", params={"path": path}), {422})
    if path != "concepts/x/passages.jsonl":  # the beginning of a list, in which only records stand
        _refused(pooler.get("/records", params={"prefix": path}), {422})


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
    ["dead-letters", "ls", "--json"],
    ["watch"],
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
    from poolbench.settings import ClusterSettings

    secret = {"POOLBENCH_RESTRICTED_S3_ACCESS_KEY": "own-key", "POOLBENCH_RESTRICTED_S3_SECRET_KEY": "own-secret"}
    environment = {**secret, "POOLBENCH_STORE": "/s", "POOLBENCH_BROKER": "filesystem:///q"}
    environment["POOLBENCH_RESTRICTED_STORE"] = "s3://restricted/pool"
    for name, value in {**environment, "POOLBENCH_STATE": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    found = ClusterSettings.load()
    assert found.restricted_uri == "s3://restricted/pool" and "own-" not in repr(found)


#: A reason of an earlier version, which does not say what it quotes.
OLD_REASON = "no states of passage 'toxicity-civil-1234-pos' in \"file 1\"; the concept's text isn't there"


def test_a_table_of_a_sensitive_concept_names_no_passage() -> None:
    row = {"concept": "toxicity", "reason": OLD_REASON}
    assert redacted(row)["reason"] == "no states of passage (withheld) in (withheld); the concept's text isn't there"
    for other in ({"concept": "contrast"}, {"concept": "contrast", "neighbour": "causation"}):
        assert redacted({**row, **other}) == {**row, **other}
    assert "1234" not in redacted({**row, "concept": "contrast", "neighbour": "toxicity"})["reason"]
    assert opaque("key", "id") == opaque("key", "id") != opaque("other", "id")
    assert re.fullmatch("[0-9a-f]{16}", opaque("key", "toxicity-civil-1234-pos"))


@pytest.mark.parametrize(
    ("reason", "quoted", "shown"),
    [
        ("passage 'a b' has no real token", ["'a b'"], "passage (withheld) has no real token"),
        ('the weights say: no "kernel"; it\'s old', ['no "kernel"; it\'s old'], "the weights say: (withheld)"),
        ("'aa' is in 'aaa' and aa", ["aa", "'aaa'"], "'(withheld)' is in (withheld) and (withheld)"),
        ("cut off in the midd", ["'the middle'"], "(withheld)"),
        ("all passages have the same vector", [], "all passages have the same vector"),
        ("it quotes 'something' unknown", None, "it quotes (withheld) unknown"),
        (None, [], None),
    ],
)
def test_a_reason_loses_what_it_says_that_it_quotes(reason: str | None, quoted: Any, shown: str | None) -> None:
    for column in ("concept", "neighbour", "scorer"):
        assert redacted({column: "depression", "reason": reason, "quoted": quoted}) == {
            column: "depression",
            "reason": shown,
        }
    assert redacted({"concept": "contrast", "reason": reason, "quoted": quoted})["reason"] == reason


def test_what_a_reason_quotes_travels_with_it() -> None:
    """From the passage that failed over vectors, measures, directions and failure records to the driver's rows."""
    error = CellError("failed", f"passage {SECRET!r} has no real token", quoted=[repr(SECRET)])
    collector = VectorCollector(["a", "b"], ["A1_mean"], 2)
    collector.fail(0, error)
    vectors = collector.table("A1_mean")
    passages = Passages.from_table(_passages(["a", "b"]))
    with pytest.raises(CellError, match=SECRET) as unusable:
        PooledVectors.from_table(vectors, passages).require_present()
    with pytest.raises(CellError, match=SECRET) as old:
        PooledVectors.from_table(vectors.drop_columns(["quoted"]), passages).require_present()
    assert unusable.value.quoted == (repr(SECRET),) and old.value.quoted is None
    with pytest.raises(CellError) as missing:
        direction_vector(directions_table({"C1": unusable.value}, 2), "C1")
    kept = read_states(states_table([KeptPassage(0, "a", error=error)], 2))
    record = asdict(Failure.of(missing.value))
    for found in (unusable.value, missing.value, kept[0].error):
        (row,) = measures_table([Measure.failed("d1.auroc", found)]).to_pylist()
        assert SECRET in row["reason"] and row["quoted"] == [repr(SECRET)]
        assert SECRET not in redacted({"concept": "toxicity", **row})["reason"]
    assert json.loads(json.dumps(record))["quoted"] == [repr(SECRET)]


def _passages(ids: list[str]) -> pa.Table:
    rows = [{"passage_id": each, "concept": "toxicity", "label": n, "doc_id": each} for n, each in enumerate(ids)]
    return table_from_rows(rows, PASSAGES)


def test_every_error_of_a_cell_says_what_it_quotes() -> None:
    """A message that formats a value with `!r` names it as quoted, else it would be shown."""
    silent = []
    files = [
        file for folder in ("shared", "corpus", "services", "driver") for file in (REPOSITORY / folder).rglob("*.py")
    ]
    for file in (file for file in files if "tests" not in file.parts):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                silent += [f"{file.name}:{line}" for line in _silent_quotes(function)]
    assert not silent


def _silent_quotes(function: ast.FunctionDef) -> Iterator[int]:
    """Lines of calls without `quoted` whose message, or whose variable `reason`, formats a value with `!r`."""
    nodes = list(ast.walk(function))
    reasons = [
        node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason"
    ]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if name in ("CellError", "StatisticError", "null") and not any(each.arg == "quoted" for each in call.keywords):
            named = reasons if "reason" in {ast.unparse(argument) for argument in call.args} else []
            parts = [part for message in (call, *named) for part in ast.walk(message)]
            if any(isinstance(part, ast.FormattedValue) and part.conversion == ord("r") for part in parts):
                yield call.lineno


def test_the_columns_of_a_runs_tables_hold_no_text() -> None:
    """What the per-text and per-passage files are made of is closed: ids, numbers, names."""
    from poolbench.contracts.tables import PROBE_SCORES, SCORES

    assert set(SCORES.names) == {"text_id", "scorer", "score"}
    assert set(PROBE_SCORES.names) == {"passage_id", "split", "fold", "label", "group", "score"}
    assert all(not pa.types.is_nested(field.type) for schema in (SCORES, PROBE_SCORES) for field in schema)
