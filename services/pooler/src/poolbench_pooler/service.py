"""The pooler as a service: tasks ``pooler.annotate`` and ``pooler.pool``, verbs ``annotate`` and ``pool``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from poolbench.contracts.tables import ANNOTATIONS, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, InputError
from poolbench.runtime.openapi import errors, example
from poolbench_pooler import core
from poolbench_pooler.annotate import load_pipeline
from poolbench_pooler.answers import AnnotateAnswer, PoolAnswer
from poolbench_pooler.config import AnnotateParams, AnnotateRequest, PoolParams, PoolRequest, StrategyRequest

if TYPE_CHECKING:
    from fastapi import APIRouter

    from poolbench.pooling.batch import Request
    from poolbench.runtime import TaskIO

_Params = TypeVar("_Params", AnnotateParams, PoolParams)


class PoolerService:
    """Thin adapter; one lock, because a spaCy pipeline serves one thread at a time."""

    name = "pooler"

    def __init__(self) -> None:
        self.handlers: Mapping[str, Callable[[Task, TaskIO], None]] = {
            "pooler.annotate": self.annotate,
            "pooler.pool": self.pool,
        }
        self._lock = threading.Lock()
        self._served = {"passages_annotated": 0, "tables_pooled": 0}

    def annotate(self, task: Task, io: TaskIO) -> None:
        """PASSAGES (and ``idf_passages``) to ANNOTATIONS."""
        params = _parse(AnnotateParams, task)
        passages = io.table("passages")
        reference = io.table("idf_passages") if "idf_passages" in task.inputs else None
        train_texts = core.idf_texts(passages, reference)
        with self._lock:
            pipeline = load_pipeline(params.pipeline).require_version(params.pipeline_version)
            table = core.annotate_passages(pipeline, passages, train_texts, params, io.progress)
        notes = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        io.write_table("annotations", table, meta=notes)
        self._served["passages_annotated"] += table.num_rows

    def pool(self, task: Task, io: TaskIO) -> None:
        """Kept STATES of a layer, and ANNOTATIONS, to VECTORS of each strategy still missing."""
        from poolbench.pooling.kept import pool_kept

        annotations = io.table("annotations") if "annotations" in task.inputs else None
        requests = {request.id: request for request in _requests(_parse(PoolParams, task).strategies)}
        for layer, wanted in _by_layer(io.missing).items():
            states = io.shards(f"states/{layer}")
            tables = pool_kept(states, [_pick(requests, name) for name in wanted], annotations)
            for strategy_id, table in tables.items():
                io.write_table(f"{strategy_id}/{layer}", table)
                self._served["tables_pooled"] += 1

    def routes(self, router: APIRouter) -> None:
        """Adds ``POST /annotate`` and ``POST /pool``."""

        texts = {"texts": ["The tide was high. However, nobody sailed."], "num_keywords": 2}
        states = {"hidden_states": [[0.5, 1.0], [1.5, -1.0]], "strategies": ["A1_mean"]}

        @router.post("/annotate", response_model=AnnotateAnswer, responses=errors(404), openapi_extra=example(texts))
        def annotate(request: AnnotateRequest) -> dict[str, Any]:
            """Words with part of speech, relation, lemma, entity, sentence, clause and keyword flag."""
            return self.annotate_texts(request)

        @router.post("/pool", response_model=PoolAnswer, responses=errors(404), openapi_extra=example(states))
        def pool(request: PoolRequest) -> dict[str, Any]:
            """One vector a strategy from the hidden states of one passage."""
            return self.pool_states(request)

    def annotate_texts(self, request: AnnotateRequest) -> dict[str, Any]:
        """Annotations of loose texts, and where their document frequencies came from."""
        with self._lock:
            pipeline = load_pipeline(request.pipeline)
            reference = request.texts if request.idf_texts is None else request.idf_texts
            rows = core.annotate_rows(pipeline, request.texts, reference, request.num_keywords)
        source = "texts" if request.idf_texts is None else "idf_texts"
        return {"annotations": rows, "idf_source": source, **pipeline.describe()}

    def pool_states(self, request: PoolRequest) -> dict[str, Any]:
        """Vectors of one passage; a strategy that cannot be computed says why in its row."""
        from poolbench.pooling.kept import pool_kept

        states, annotations = core.states_of(request), None
        if request.text is not None:
            if request.offsets is None:
                raise InputError("text without offsets; give the character range of each token in offsets, [T][2]")
            asked = AnnotateRequest(texts=[request.text], pipeline=request.pipeline)
            annotations = table_from_rows(self.annotate_texts(asked)["annotations"], ANNOTATIONS)
        wanted = [StrategyRequest(id=item) if isinstance(item, str) else item for item in request.strategies]
        tables = pool_kept([states], _requests(wanted), annotations)
        rows = {name: table.drop_columns(["passage_id"]).to_pylist()[0] for name, table in tables.items()}
        return {"vectors": [{"strategy": name, **row} for name, row in rows.items()]}

    def health(self) -> dict[str, Any]:
        """What was served so far."""
        return dict(self._served)


def create() -> PoolerService:
    """The service that the runtime deploys."""
    return PoolerService()


def _parse(kind: type[_Params], task: Task) -> _Params:
    """The task's parameters. Raises ConfigError naming each wrong one."""
    try:
        return kind.model_validate(task.params)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"{task.kind} parameters: {'; '.join(lines)}") from None


def _by_layer(roles: Iterable[str]) -> dict[str, list[str]]:
    """Strategy ids by layer, from roles ``<strategy>/<layer>``."""
    layers: dict[str, list[str]] = {}
    for role in sorted(roles):
        strategy_id, _, layer = role.rpartition("/")
        layers.setdefault(layer, []).append(strategy_id)
    return layers


def _requests(strategies: list[StrategyRequest]) -> list[Request]:
    from poolbench.pooling.batch import Request

    names = [entry.id for entry in strategies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"strategy {twice[0]!r} is asked for twice; one request may name it once")
    return [Request.of(entry.id, entry.params) for entry in strategies]


def _pick(requests: Mapping[str, Request], strategy_id: str) -> Request:
    if strategy_id not in requests:
        raise InputError(f"an output asks for strategy {strategy_id!r}, but params name {sorted(requests)}")
    return requests[strategy_id]
