"""The extractor's adapter: from tasks and requests to the functions of `core`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Header, Response
from fastapi.responses import JSONResponse
from transformers.utils.logging import disable_progress_bar

from poolbench.contracts.bounds import ModelName, Revision
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import ARROW_STREAM
from poolbench.runtime.folders import requested_model
from poolbench.runtime.openapi import BINARY, Responses, errors, example
from poolbench.settings import ExtractorSettings
from poolbench.steps.extractor import CALIBRATE, COUNT, EXTRACT, FREQUENCIES, STATES
from poolbench_extractor import core
from poolbench_extractor.config import EmbedAnswer, EmbedRequest, ModelAnswer
from poolbench_extractor.core import calibrate
from poolbench_extractor.embedding import texts as embedding
from poolbench_extractor.encode import count_tokens, tokenise
from poolbench_extractor.models.load import DecoderCache, describe, tokenizer_of
from poolbench_extractor.tasks import missing_outputs, read_passages, reading_of, reporting, require_vectors

if TYPE_CHECKING:
    from fastapi import APIRouter

    from poolbench.runtime.taskio import TaskIO


class ExtractorService:
    """Keep one model loaded: the one requested last."""

    name = "extractor"

    def __init__(self, deployment: ExtractorSettings) -> None:
        self.handlers = {EXTRACT.kind: self.extract, CALIBRATE.kind: self.calibrate, COUNT.kind: self.count}
        self._deployment = deployment
        self._models = DecoderCache(deployment)

    def extract(self, task: Task, io: TaskIO) -> None:
        """Write vectors by strategy and layer, and kept states, as far as they are missing."""
        params = EXTRACT.params_of(task)
        decoder = self._models.get(params.reference())
        wanted, keep = missing_outputs(decoder, params, io.missing)
        passages, reading = read_passages(task, io), reading_of(params)
        require_vectors(len(passages.ids), sum(map(len, wanted.values())), decoder.width)
        meta = {"model_revision": decoder.revision}
        with ExitStack() as stack:  # kept states are committed last: where they are, the vectors are too
            sinks = {layer: stack.enter_context(io.writing_shards(STATES(layer), meta)) for layer in keep}
            with reporting(decoder.device, io):
                tables = core.extract(decoder, passages, wanted, keep=sinks, reading=reading, progress=io.progress)
            for role, table in tables.items():
                io.write_table(role, table, meta=meta)

    def calibrate(self, task: Task, io: TaskIO) -> None:
        """Write the mean residual norms on the fixed calibration texts."""
        params = CALIBRATE.params_of(task)
        decoder = self._models.get(params.reference())
        layers = [decoder.layer(layer) for layer in params.layers]
        passages, reading = read_passages(task, io), reading_of(params)
        with reporting(decoder.device, io):
            table = calibrate(decoder, passages, layers, reading=reading, progress=io.progress)
        for role in sorted(io.missing):
            io.write_table(role, table, meta={"model_revision": decoder.revision})

    def count(self, task: Task, io: TaskIO) -> None:
        """Write how often each token occurs in all passages given; only the tokenizer is loaded."""
        params = COUNT.params_of(task)
        tokenizer = tokenizer_of(params.reference(), self._deployment)
        tables = (io.table(role) for role in sorted(task.inputs))
        texts = ((table["passage_id"].to_pylist(), table["text"].to_pylist()) for table in tables)
        contexts = (c for given in texts for c in tokenise(tokenizer, *given, include_bos=params.include_bos))
        io.write_table(FREQUENCIES(), count_tokens(contexts))

    def embed(self, request: EmbedRequest, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        """Return vectors of texts as JSON, or as an Arrow stream if accepted; a text that fails is a row."""
        pooling = embedding.unsupervised(request.strategy, request.params)
        passages = embedding.passages_of(request, pooling)
        table = embedding.embed(self._models.get(request.reference()), request, pooling, passages)
        if ARROW_STREAM in accept:
            return Response(embedding.as_stream(table), media_type=ARROW_STREAM)
        return JSONResponse(embedding.as_json(table))

    def model(self, model: ModelName = "demo", revision: Literal[""] | Revision = "") -> dict[str, Any]:
        """Return revision, depth, width and window of a model, without loading its weights."""
        return describe(requested_model(model, revision=revision or None))

    def routes(self, router: APIRouter) -> None:
        """Add `POST /embed` and `GET /model`."""
        vectors: Responses = {200: {"model": EmbedAnswer, "content": {ARROW_STREAM: BINARY}}}
        router.add_api_route(
            "/embed",
            self.embed,
            methods=["POST"],
            response_model=None,
            responses=vectors | errors(404),
            openapi_extra=example({"texts": ["The tide was high."], "strategy": "A1_mean", "layer": -1}),
        )
        router.add_api_route(
            "/model",
            self.model,
            methods=["GET"],
            response_model=ModelAnswer,
            responses=errors(400, 404, 422, body=False),
        )

    def health(self) -> dict[str, Any]:
        """Return what is loaded."""
        return self._models.loaded()


def create() -> ExtractorService:
    """Return the service, for the runtime."""
    disable_progress_bar()
    return ExtractorService(ExtractorSettings.load())
