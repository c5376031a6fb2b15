"""The extractor's adapter: tasks and requests to the functions of ``core``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.utils.logging import disable_progress_bar

from poolbench.config import resolve_model
from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.pooling.batch import Request
from poolbench_extractor import core
from poolbench_extractor.config import CalibrateParams, Deployment, EmbedRequest, ExtractParams
from poolbench_extractor.model import DecoderCache, describe
from poolbench_extractor.tasks import missing_outputs, parse_params, read_passages, reading_of, reporting

if TYPE_CHECKING:
    from fastapi import APIRouter

    from poolbench.runtime.taskio import TaskIO


class ExtractorService:
    """Keeps one model loaded, the one asked for last."""

    name = "extractor"

    def __init__(self, deployment: Deployment) -> None:
        self.handlers = {"extractor.extract": self.extract, "extractor.calibrate": self.calibrate}
        self._models = DecoderCache(deployment)

    def extract(self, task: Task, io: TaskIO) -> None:
        """``extractor.extract``: vectors by strategy and layer, and kept states; only what is missing."""
        params = parse_params(ExtractParams, task)
        decoder = self._models.get(params.reference())
        wanted, keep = missing_outputs(decoder, params, io.missing)
        passages, reading = read_passages(task, io), reading_of(params)
        with reporting(decoder.device, io):
            tables = core.extract(decoder, passages, wanted, keep=keep, reading=reading, progress=io.progress)
        for role, table in tables.items():
            io.write_table(role, table, meta={"model_revision": decoder.revision})

    def calibrate(self, task: Task, io: TaskIO) -> None:
        """``extractor.calibrate``: mean residual norms on the fixed calibration texts."""
        params = parse_params(CalibrateParams, task)
        decoder = self._models.get(params.reference())
        layers = [decoder.layer(layer) for layer in params.layers]
        passages, reading = read_passages(task, io), reading_of(params)
        with reporting(decoder.device, io):
            table = core.calibrate(decoder, passages, layers, reading=reading, progress=io.progress)
        for role in sorted(io.missing):
            io.write_table(role, table, meta={"model_revision": decoder.revision})

    def embed(self, request: EmbedRequest) -> dict[str, Any]:
        """Vectors of a few texts."""
        pooling = Request.of(request.strategy, request.params)
        if pooling.strategy.readout is not None:
            raise InputError(f"{pooling.id} learns from labels which vectors count; run it, with a corpus, instead")
        decoder = self._models.get(request.reference())
        layer = decoder.layer(request.layer)
        passages = core.Passages([str(index) for index in range(len(request.texts))], request.texts)
        (table,) = core.extract(decoder, passages, {layer: [pooling]}, reading=reading_of(request)).values()
        failed = [row for row in table.select(["status", "reason"]).to_pylist() if row["status"] != "ok"]
        if failed:
            raise InputError(f"{len(failed)} of {len(request.texts)} texts failed: {failed[0]['reason']}")
        found = {"model": request.model, "model_revision": decoder.revision, "strategy": pooling.id}
        columns = {name: table[name].to_pylist() for name in ("applied", "token_share")}
        return {**found, "layer": layer, **columns, "vectors": vector_matrix(table["vector"]).tolist()}

    def model(self, model: str = "demo", revision: str = "") -> dict[str, Any]:
        """Revision, depth, width and window of a model, without loading its weights."""
        return describe(resolve_model(model, revision=revision or None))

    def routes(self, router: APIRouter) -> None:
        """``POST /embed`` and ``GET /model``."""
        router.add_api_route("/embed", self.embed, methods=["POST"])
        router.add_api_route("/model", self.model, methods=["GET"])

    def health(self) -> dict[str, Any]:
        """What is loaded."""
        return self._models.loaded()


def create() -> ExtractorService:
    """The service, for the runtime."""
    disable_progress_bar()
    return ExtractorService(Deployment.from_environment())
