"""Every field of every verb and task refuses what its schema does not allow: generated from the models themselves."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import failure_path
from poolbench.queue.leases import FolderLeases
from poolbench.steps import SERVICE_STEPS
from poolbench.storage.artifacts import Artifacts
from poolbench.worker.service import Service
from poolbench.worker.worker import RefusedTaskError, Worker
from poolbench_extractor.config import EmbedRequest, ExplainRequest
from poolbench_extractor.embedding.openai import EmbeddingsRequest
from poolbench_pooler.cluster import RunName
from poolbench_pooler.concepts import ConceptRequest
from poolbench_pooler.config import AnnotateRequest, PoolRequest
from poolbench_prober.requests import DirectionRequest, ProbeRequest
from poolbench_scorer.http.requests import ImportRequest, ScoreRequest, TrainRequest

pytestmark = pytest.mark.lane(name="gate")

Schema = Mapping[str, Any]
#: Bodies of the verbs, but for those of the steerer: their tests need its engine and are in its own folder.
BODIES: dict[str, type[BaseModel]] = {
    "POST /extractor/embed": EmbedRequest,
    "POST /extractor/explain": ExplainRequest,
    "POST /extractor/v1/embeddings": EmbeddingsRequest,
    "POST /pooler/annotate": AnnotateRequest,
    "POST /pooler/pool": PoolRequest,
    "POST /pooler/concepts": ConceptRequest,
    "POST /pooler/check_concept": ConceptRequest,
    "POST /pooler/cancel_run": RunName,
    "POST /prober/probe": ProbeRequest,
    "POST /prober/direction": DirectionRequest,
    "POST /scorer/score": ScoreRequest,
    "POST /scorer/train": TrainRequest,
    "POST /scorer/import": ImportRequest,
}
#: Parameters of the tasks that have some.
PARAMETERS = {kind: step.params for kind, step in SERVICE_STEPS.items() if step.params.model_fields}
HOSTILE: tuple[Any, ...] = (
    *(None, True, "x", "", 1.5, 0, -1, 2**70, -(2**70), 10**400, 1e300, math.nan, math.inf, -math.inf),
    *("\ud800", "a\x00b", "x" * 5_000, "../../x", [], {}, [None], [[]], {"a": 1}),
)
#: One of each kind of them.
FEW: tuple[Any, ...] = (2**70, None, True, 1.5, "\ud800", math.nan, [None])
LIMITS = {"minimum": ge, "maximum": le, "exclusiveMinimum": gt, "exclusiveMaximum": lt}
#: Names of fields and numbers of entries on the way to a place.
Steps = tuple[str | int, ...]
WORDS = {"upos": ["NOUN"], "dep": ["root"], "head": [0], "lemma": ["x"], "entity": [""], "keyword": [True]}
PLACES = {"word_start": [0], "word_end": [1], "sentence": [0], "clause": [0]}
PASSAGE = {"text": "It rained.", "label": 1, "doc_id": "d", "pair_id": "p"}
VECTORS = {"vectors": [[0.1, 1.0], [0.9, 0.0], [0.2, 1.0], [1.1, 0.0]], "labels": [0, 1, 0, 1], "pairs": ["a"] * 4}
TEXTS = {"name": "texts.jsonl", "content": '{"text": "a"}'}
CONCEPT = {
    **{"id": "mine", "definition": "d", "neighbours": ["hedging"], "seed_words": ["w"], "seed": 0},
    **{"triggers": ["t"], "sensitive": False, "licence": "MIT"},
    **{"positives": TEXTS, "negatives": TEXTS, "pairs": TEXTS},
}
#: A whole request by verb: each field, and one entry of each list, is replaced by what is hostile.
REQUESTS: Mapping[str, dict[str, Any]] = {
    "POST /extractor/embed": {
        **{"texts": ["a"], "ids": ["i"], "annotations": [{"passage_id": "0", **WORDS, **PLACES}]},
        **{"model": "demo", "model_revision": "r", "dtype": "float32", "include_bos": False, "max_length": 9},
        **{"strategy": "W2_last_k", "params": {"k": 1}, "layer": 1, "batch_size": 1, "padding_side": "left"},
    },
    "POST /extractor/explain": {
        **{"texts": ["a"], "model": "demo", "model_revision": "r", "dtype": "float32", "direction": [1.0, 0.5]},
        **{"strategy": "W2_last_k", "params": {"k": 1}, "layer": 1},
    },
    "POST /extractor/v1/embeddings": {
        **{"model": "demo+A1_mean@1", "input": "a", "encoding_format": "float", "dimensions": 256, "user": "u"}
    },
    "POST /pooler/annotate": {"texts": ["a"], "idf_texts": ["b"], "pipeline": "annotator", "num_keywords": 1},
    "POST /pooler/pool": {
        **{"hidden_states": [[1.0, 2.0]], "strategies": [{"id": "W2_last_k", "params": {"k": 1}}], "text": "a"},
        **{"offsets": [[0, 1]], "special": [False], "inflow": [1.0], "pipeline": "annotator"},
    },
    "POST /pooler/concepts": CONCEPT,
    "POST /pooler/check_concept": CONCEPT,
    "POST /pooler/cancel_run": {"run": "r"},
    "POST /prober/probe": {
        **VECTORS,
        **{"task": "concept", "splits": ["train"] * 4, "words": ["w"] * 4, "groups": ["g"] * 4, "domains": ["d"] * 4},
        "params": {"concept": "c", "fold_seeds": [3], "sensitivity_c": [2.0], "folds": 2},
        "task_params": {"task": "t", "seeds": [0], "c_values": [1.0], "compression_c": [1.0]},
    },
    "POST /prober/direction": {**VECTORS, "method": "C1", "seed": 0},
    "POST /scorer/score": {"texts": ["a"], "scorer": "contrast", "scorers": ["contrast"]},
    "POST /scorer/train": {
        "params": {"concept": "contrast", "base": "minilm", "revision": "r", "tokenizer": "minilm"},
        **{"passages": [PASSAGE], "passages_key": "k"},
    },
    "POST /scorer/import": {
        **{"concept": "contrast", "source": "a/b", "revision": "r", "subfolder": "", "positive_label": "x"},
        **{"tokenizer": "minilm", "passages": [PASSAGE], "passages_key": "k"},
    },
}


def fits(schema: Schema, value: Any) -> bool:
    """Whether a schema allows a value; integers are whole, numbers are finite, and text is Unicode."""
    if parts := schema.get("anyOf", schema.get("oneOf")):
        return any(fits(part, value) for part in parts)
    if "enum" in schema or "const" in schema:
        return isinstance(value, str) and value in schema.get("enum", [schema.get("const")])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _is_number(kind, value) and _within(schema, value)
    if kind == "string":
        return isinstance(value, str) and _is_text(schema, value)
    if kind == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        items = schema.get("items", {})
        return isinstance(value, list) and low <= len(value) <= high and all(fits(items, item) for item in value)
    if kind == "object":
        known, open_ended = schema.get("properties"), not schema.get("properties")
        required = set(schema.get("required", []))
        return isinstance(value, dict) and (open_ended or required <= set(value) <= set(known or ()))
    return {"boolean": isinstance(value, bool), "null": value is None}.get(str(kind), True)


def _is_number(kind: str, value: Any) -> bool:
    return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)


def _within(schema: Schema, value: float) -> bool:
    finite = not isinstance(value, float) or math.isfinite(value)
    return finite and all(holds(value, schema[key]) for key, holds in LIMITS.items() if key in schema)


def _is_text(schema: Schema, value: str) -> bool:
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        return False
    sized = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
    return sized and re.search(schema.get("pattern", ""), value) is not None


def places(schema: Schema, example: Any, path: Steps = ()) -> Iterator[tuple[Steps, Schema]]:
    """Every place of an example that its schema speaks of, with the schema there."""
    if path:
        yield path, schema
    for part in schema.get("anyOf", [schema]):
        if "properties" in part and isinstance(example, dict):
            for name, field in part["properties"].items():
                yield from places(field, example.get(name), (*path, name))
        if part.get("type") == "array" and isinstance(example, list) and example:
            item = part.get("prefixItems", [part.get("items", {})])[0]
            yield from places(item, example[0], (*path, 0))


def replaced(example: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    """The example with another value at one place."""
    made = deepcopy(example)
    inner: Any = made
    for step in path[:-1]:
        if isinstance(inner, dict) and inner.get(step) is None:  # type: ignore[call-overload]
            inner[step] = {}  # type: ignore[index]
        inner = inner[step]  # type: ignore[index]
    inner[path[-1]] = value  # type: ignore[index]
    return made


def hostile(
    schema: Schema, example: dict[str, Any], values: Sequence[Any] = HOSTILE
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each place with each value that does not belong there, and fields and names that do not exist."""
    for path, field in places(schema, example):
        for value in values:
            if not fits(field, value):
                yield f"{'.'.join(map(str, path))} = {ascii(value)[:40]}", replaced(example, path, value)
    for name in ("nonsense", "a\x00b", "\ud800", "x" * 5_000):
        yield f"a field {ascii(name)[:40]}", {**example, name: 1}


@pytest.mark.parametrize("verb", BODIES)
def test_no_field_of_a_verb_takes_what_its_schema_forbids(verb: str, clients: dict[str, TestClient]) -> None:
    service, path = re.fullmatch(r"POST /(\w+)(/[\w/]+)", verb).groups()  # type: ignore[union-attr]
    wrong, count = [], 0
    for place, body in hostile(schema_of(BODIES[verb]), REQUESTS[verb]):
        answer = clients[service].post(path, content=json.dumps(body))
        count += 1
        error = answer.json().get("error", {})
        clear = isinstance(error.get("message"), str) and len(error["message"]) <= 4_000 and error.get("code")
        if answer.status_code not in (400, 413, 422) or not clear or "Traceback" in answer.text:
            wrong.append(f"{place}: {answer.status_code} {answer.text[:200]}")
    assert not wrong, f"{len(wrong)} of {count} were not refused as they should be:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("kind", PARAMETERS)
def test_no_parameter_of_a_task_takes_what_its_schema_forbids(
    kind: str, services: dict[str, Service], artifacts: Artifacts, tmp_path: Path
) -> None:
    service = services[kind.partition(".")[0]]
    worker = Worker(service, artifacts, FolderLeases(tmp_path / "leases"))
    message = Task(kind=kind, outputs={"o": "never"}).model_dump(mode="json")
    wrong = []
    first = next(other for other, model in PARAMETERS.items() if model is PARAMETERS[kind])
    values = FEW if kind == first else FEW[:1]  # each failure is a file on the disk
    for place, params in hostile(schema_of(PARAMETERS[kind]), EXAMPLES.get(kind, {}), values):
        try:
            ended = worker.run({**message, "params": params})
        except RefusedTaskError:  # no task at all, by the name of a parameter
            ended = "failed"
        failure = json.loads(artifacts.store.get(failure_path(message["task_id"])))
        if ended != "failed" or failure["code"] not in ("config", "input") or failure["retryable"]:
            wrong.append(f"{place}: {ended} {failure['code']} {ascii(failure['reason'])[:200]}")
    assert not wrong, "\n".join(wrong[:20])


#: Required parameters of tasks, and one entry of lists.
EXAMPLES: Mapping[str, dict[str, Any]] = {
    "pooler.pool": {"strategies": [{"id": "W2_last_k", "params": {"k": 1}}]},
    "extractor.extract": {"model": "demo", "layers": [0], "strategies": [{"id": "A1_mean"}]},
    "extractor.calibrate": {"model": "demo", "layers": [0]},
    "extractor.count": {"model": "demo"},
    "prober.probe": {"fold_seeds": [3], "sensitivity_c": [1.0]},
    "steerer.generate": {"model": "demo", "layer": 0, "max_tokens": 4, "strengths": [0.1], "direction_ids": ["C1"]},
    "steerer.continue": {"model": "demo", "num_passages": 1, "max_tokens": 4},
    "scorer.train": {"concept": "contrast"},
}


def unbounded(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield the places of a schema that allow a number, a text or a list of any size."""
    if parts := schema.get("anyOf", schema.get("oneOf")):
        for part in parts:
            yield from unbounded(part, path)
        return
    kind, limited = schema.get("type"), "enum" in schema or "const" in schema
    if kind in ("integer", "number"):
        low, high = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
        if not (any(key in schema for key in low) and any(key in schema for key in high)):
            yield path
    elif kind == "string" and not limited and "maxLength" not in schema:
        yield path
    elif kind == "array":
        if "maxItems" not in schema:
            yield path
        for item in [schema.get("items", {}), *schema.get("prefixItems", [])]:
            yield from unbounded(item, f"{path}[]")
    elif kind == "object":
        if not schema.get("properties") and "maxProperties" not in schema:
            yield path
        for name, field in schema.get("properties", {}).items():
            yield from unbounded(field, f"{path}.{name}" if path else name)


def schema_of(model: type[BaseModel]) -> Schema:
    """The JSON schema of a model with all references resolved."""
    schema = model.model_json_schema()
    return inlined(schema, schema.get("$defs", {}))


def inlined(node: Any, definitions: Schema) -> Any:
    if isinstance(node, Mapping):
        if "$ref" in node:
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return {**inlined(definitions[node["$ref"].rpartition("/")[2]], definitions), **rest}
        return {key: inlined(value, definitions) for key, value in node.items() if key != "$defs"}
    return [inlined(item, definitions) for item in node] if isinstance(node, list) else node


def test_every_field_of_every_verb_and_task_has_bounds(services: dict[str, Service]) -> None:
    kinds = {kind for service in services.values() for kind in service.handlers}
    assert kinds - set(PARAMETERS) == {"prober.component"}
    posted = set()
    for name, service in services.items():
        router = APIRouter()
        service.routes(router)
        documented = [route for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]
        posted |= {f"POST /{name}{route.path}" for route in documented if "POST" in route.methods}
    assert {verb for verb in posted if not verb.startswith("POST /steerer/")} == set(BODIES) == set(REQUESTS)
    for model in {*BODIES.values(), *PARAMETERS.values(), Task}:
        assert not list(unbounded(schema_of(model))), model.__name__


@pytest.mark.parametrize("value", ["x", 1.5, None, True, 0, -1, 2**70, math.nan, [1], "\ud800"])
def test_parameters_of_strategies_have_types_and_bounds(value: Any, clients: dict[str, TestClient]) -> None:
    for service, path, body in (
        ("pooler", "/pool", {"hidden_states": [[1.0]], "strategies": [{"id": "W2_last_k", "params": {"k": value}}]}),
        ("extractor", "/embed", {"texts": ["a"], "strategy": "W2_last_k", "params": {"k": value}}),
    ):
        answer = clients[service].post(path, content=json.dumps(body))
        assert answer.status_code == 400 and "strategy W2_last_k: k: " in answer.json()["error"]["message"]
