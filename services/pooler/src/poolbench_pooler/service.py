"""The pooler service: tasks `pooler.annotate` and `pooler.pool`, and routes for texts, concepts and the cluster."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter

from poolbench.contracts.tables import ANNOTATIONS, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.http.openapi import errors, example
from poolbench.library.concepts import Library
from poolbench.pooling.batch import Request
from poolbench.queue import Broker, TaskQueue
from poolbench.settings import ClusterSettings
from poolbench.steps.base import StrategyParam
from poolbench.steps.extractor import ANNOTATIONS as ANNOTATIONS_ROLE
from poolbench.steps.extractor import PASSAGES, STATES, VECTORS
from poolbench.steps.pooler import ANNOTATE, IDF_PASSAGES, POOL
from poolbench.storage import open_store
from poolbench.worker.taskio import TaskIO
from poolbench.worker.turns import Turns
from poolbench_pooler import core
from poolbench_pooler.annotate import load_pipeline
from poolbench_pooler.concepts import ConceptVerbs
from poolbench_pooler.config import AnnotateAnswer, AnnotateRequest, PoolAnswer, PoolRequest


def _open_queue() -> TaskQueue:
    return TaskQueue(Broker(ClusterSettings.load().broker_url))


class PoolerService:
    """Service that annotates and pools texts.

    Annotations take turns, because a spaCy pipeline serves one thread at a time.
    """

    name = "pooler"

    def __init__(self, library: Callable[[], Library], queue: Callable[[], TaskQueue] = _open_queue) -> None:
        """Store the functions that open the library of users' concepts and the queue.

        The first request that needs the library or the queue opens it.
        """
        self._concepts = ConceptVerbs(library)
        self._queue, self._library = queue, library
        self.handlers: Mapping[str, Callable[[Task, TaskIO], None]] = {
            ANNOTATE.kind: self.annotate,
            POOL.kind: self.pool,
        }
        self._turns = Turns()
        self._served = {"passages_annotated": 0, "tables_pooled": 0}

    def annotate(self, task: Task, io: TaskIO) -> None:
        """Write ANNOTATIONS of PASSAGES."""
        params = ANNOTATE.params_of(task)
        passages = io.table(PASSAGES())
        reference = io.table(IDF_PASSAGES()) if IDF_PASSAGES() in task.inputs else None
        train_texts = core.idf_texts(passages, reference)
        with self._turns.task():
            pipeline = load_pipeline(params.pipeline).require_version(params.pipeline_version)
            table = core.annotate_passages(pipeline, passages, train_texts, params, io.progress)
        notes = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
        io.write_table(ANNOTATIONS_ROLE(), table, meta=notes)
        self._served["passages_annotated"] += table.num_rows

    def pool(self, task: Task, io: TaskIO) -> None:
        """Write VECTORS of each missing strategy and layer, from the stored STATES of the layer and ANNOTATIONS."""
        from poolbench.pooling.kept import pool_kept

        params = POOL.params_of(task)
        annotations = io.table(ANNOTATIONS_ROLE()) if ANNOTATIONS_ROLE() in task.inputs else None
        requests = {request.id: request for request in _requests(params.strategies)}
        layers = defaultdict(list)
        for _, cell in VECTORS.among(io.missing):
            if cell.strategy not in requests:
                raise InputError(f"an output asks for strategy {cell.strategy!r}, but params name {sorted(requests)}")
            layers[cell.layer].append(requests[cell.strategy])
        for layer, layer_requests in layers.items():
            for strategy_id, table in pool_kept(
                io.shards(STATES(layer)), layer_requests, annotations, params.sink_rule
            ).items():
                io.write_table(VECTORS(strategy_id, layer), table)
                self._served["tables_pooled"] += 1

    def routes(self, router: APIRouter) -> None:
        """Add `POST /annotate`, `POST /pool`, and the verbs of users' concepts and of the cluster."""
        from poolbench_pooler.cluster import ClusterVerbs

        self._concepts.routes(router)
        ClusterVerbs(lambda: self._library().store, self._queue).routes(router)
        texts = {"texts": ["The tide was high. However, no boat sailed."], "num_keywords": 2}
        states = {"hidden_states": [[0.5, 1.0], [1.5, -1.0]], "strategies": ["A1_mean"]}

        annotating: dict[str, Any] = {"response_model": AnnotateAnswer, "openapi_extra": example(texts)}
        router.post("/annotate", name="annotate", responses=errors(404), **annotating)(self.annotate_texts)
        pooling: dict[str, Any] = {"response_model": PoolAnswer, "openapi_extra": example(states)}
        router.post("/pool", name="pool", responses=errors(404), **pooling)(self.pool_states)

    def annotate_texts(self, request: AnnotateRequest) -> dict[str, Any]:
        """Return words with part of speech, relation, lemma, entity, sentence, clause and keyword flag."""
        with self._turns.request():
            pipeline = load_pipeline(request.pipeline)
            reference = request.texts if request.idf_texts is None else request.idf_texts
            rows = core.annotate_rows(pipeline, request.texts, reference, request.num_keywords)
        source = "texts" if request.idf_texts is None else "idf_texts"
        return {"annotations": rows, "idf_source": source, **pipeline.describe()}

    def pool_states(self, request: PoolRequest) -> dict[str, Any]:
        """Return one vector a strategy from the hidden states of one passage."""
        from poolbench.pooling.kept import pool_kept

        states, annotations = core.states_of(request), None
        if request.text is not None:
            if request.offsets is None:
                raise InputError("text without offsets; give the character range of each token in offsets, [T][2]")
            parse_request = AnnotateRequest(texts=[request.text], pipeline=request.pipeline)
            annotations = table_from_rows(self.annotate_texts(parse_request)["annotations"], ANNOTATIONS)
        strategies = [StrategyParam(id=item) if isinstance(item, str) else item for item in request.strategies]
        tables = pool_kept([states], _requests(strategies), annotations, request.sink_rule)
        rows = {name: table.drop_columns(["passage_id"]).to_pylist()[0] for name, table in tables.items()}
        return {"vectors": [{"strategy": name, **row} for name, row in rows.items()]}

    def health(self) -> dict[str, Any]:
        """Return the numbers of passages annotated and tables pooled so far."""
        return dict(self._served)


def create() -> PoolerService:
    """Return the service that the runtime deploys."""
    return PoolerService(lambda: Library(open_store(ClusterSettings.load().store_uri)))


def _requests(strategies: list[StrategyParam]) -> list[Request]:
    from poolbench.pooling.batch import Request

    names = [entry.id for entry in strategies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"strategy {twice[0]!r} is asked for twice; one request may name it once")
    return [Request.of(entry.id, entry.params) for entry in strategies]
