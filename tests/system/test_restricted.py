"""The rule for sensitive concepts, tried at every way out: services, commands, exports, copies and pages."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from poolbench.config import ModelRef
from poolbench.contracts.tables import PASSAGES, TEXTS, table_from_rows
from poolbench.contracts.wire import RUN_FILES, SERVICES, run_path
from poolbench.errors import PoolbenchError, RestrictedError
from poolbench.http.api import build_api
from poolbench.library.directions import TABLE as DIRECTIONS
from poolbench.library.directions import NamedDirections
from poolbench.library.directions import table_of as directions_table
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts, open_store
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import load_service
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_corpora.stories.catalog import pairs_of
from poolbench_driver.cli import app
from poolbench_driver.cluster.copying import copy_store
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.release.activations import export_activations
from poolbench_driver.release.directions import export_directions
from poolbench_driver.release.scorers import export_scorers
from poolbench_driver.release.source import Export, releasable_concepts
from poolbench_driver.release.steered_outputs import export_steered_outputs
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope

SECRET, SCORER = "SECRET-PASSAGE", "restricted.scorer.train.1"
PASSAGES_KEY, TEXTS_KEY = "restricted.corpus.passages.1", "restricted.steerer.generate.1"
DIRECTIONS_KEY = "restricted.prober.probe.1"

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


@pytest.mark.parametrize("key", [PASSAGES_KEY, "restricted.corpus.passages.none", f"x/../../artifacts/{PASSAGES_KEY}"])
def test_no_request_trains_on_restricted_passages(artifacts: Artifacts, key: str) -> None:
    body = {"params": {"concept": "contrast"}, "passages_key": key}
    _refused(_scorer().post("/train", json=body), {403, 400, 422})


PATHS = [f"artifacts/{PASSAGES_KEY}/manifest.json", f"artifacts/{PASSAGES_KEY}", "artifacts", "runs/../artifacts/x"]


@pytest.mark.parametrize("path", [*PATHS, "runs/x/../../artifacts/y", "/etc/passwd", "concepts/x/passages.jsonl", ""])
def test_no_request_reads_more_than_records(artifacts: Artifacts, path: str) -> None:
    pooler = TestClient(build_api(load_service("pooler"), "t"), headers={"Authorization": "Bearer t"})
    _refused(pooler.get("/record", params={"path": path}), {422})
    if path != "concepts/x/passages.jsonl":  # the beginning of a list, in which only records stand
        _refused(pooler.get("/records", params={"prefix": path}), {422})


@pytest.mark.parametrize("name", ["toxicity", SCORER, "restricted.scorer.train.none", f"x/../../artifacts/{SCORER}"])
def test_no_request_scores_by_a_sensitive_scorer(artifacts: Artifacts, name: str) -> None:
    _refused(_scorer().post("/score", json={"scorer": name, "texts": ["a"]}), {403, 400, 404})
    _refused(_scorer().post("/score", json={"scorers": [name], "texts": ["a"]}), {403, 400, 404, 422})


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


def _plan(store: Artifacts, folder: Path) -> Export:
    """A run of a sensitive concept, with nothing in its store."""
    config = load_run_config(
        None, {"preset": "demo", "concepts": ["toxicity"], "layers": [2], "keep_activations": True}
    )
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=4)
    plan = make_plan(Scope(config, model, [STRATEGIES.get("A1_mean")]))
    run = create_run(folder / "runs", config)
    columns = ("concept", "metric", "scorer", "value", "params", "reason")
    for name in ("results", "text_scores"):
        write_table(run, name, pa.table({column: pa.array([], pa.string()) for column in columns}))
    return Export(run, plan, store, config.concepts, "apache-2.0", "poolbench-driver export")


EXPORTS = [export_activations, export_directions, export_scorers, export_steered_outputs]


@pytest.mark.parametrize("write", EXPORTS, ids=lambda write: write.__name__)
def test_no_export_writes_them(artifacts: Artifacts, tmp_path: Path, write: Callable[[Export, Path], Any]) -> None:
    """Past the check of the concept's name: the keys say so too."""
    export = _plan(artifacts, tmp_path)
    with pytest.raises(PoolbenchError) as refused:
        write(export, tmp_path / "out")
    assert isinstance(refused.value, RestrictedError) or write is export_directions  # its index says what is left out
    assert not (tmp_path / "out").exists()


def test_no_request_steers_by_their_directions(artifacts: Artifacts) -> None:
    model = ModelRef("demo", "demo", "r1", "float32")
    row = {"model": "demo", "model_revision": "r1", "key": DIRECTIONS_KEY, "concept": "toxicity", "layer": 2}
    row |= {"gain": 0.5, "gain_where_chosen": 0.5, "d1": 0.9}
    sink = pa.BufferOutputStream()
    pq.write_table(directions_table([row | {"strategy": "A1_mean", "construction": "C1"}]), sink)
    artifacts.store.put(run_path("a", f"{RUN_FILES}{DIRECTIONS}.parquet"), sink.getvalue().to_pybytes())
    with pytest.raises(RestrictedError, match="directions of toxicity"):
        NamedDirections(artifacts).find(model, "toxicity")


def test_no_copy_of_the_store_and_no_page_of_a_corpus_holds_them(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        table = build_planted("toxicity", num_train=8, num_test=4, num_scorer=4, seed=0)
        write_corpus(table, tmp_path / "corpus", CorpusManifest(revision="r", tokenizer="words", window=(1, 500)))
        assert [*pairs_of(tmp_path / "corpus")]
    assert not [*pairs_of(tmp_path / "corpus")]
    copy_store(artifacts.store, FolderStore(tmp_path / "copy"))
    assert not [path for path in (tmp_path / "copy").rglob("*") if "restricted" in path.name]


def test_the_operator_lifts_the_rule_with_one_flag(artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    answer = _scorer().post("/score", json={"scorer": SCORER, "texts": ["a"]})
    assert answer.status_code != 403, answer.text
    assert releasable_concepts(["contrast", "toxicity"], None) == ["contrast", "toxicity"]


def test_the_columns_of_a_runs_tables_hold_no_text() -> None:
    """What the per-text and per-passage files are made of is closed: ids, numbers, names."""
    from poolbench.contracts.tables import PROBE_SCORES, SCORES

    assert set(SCORES.names) == {"text_id", "scorer", "score"}
    assert set(PROBE_SCORES.names) == {"passage_id", "split", "fold", "label", "group", "score"}
    assert all(not pa.types.is_nested(field.type) for schema in (SCORES, PROBE_SCORES) for field in schema)
