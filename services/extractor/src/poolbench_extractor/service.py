"""Adapter of the extractor: it maps tasks and requests to the functions of `core`."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
import torch
from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse
from transformers.utils.logging import disable_progress_bar

from poolbench.contracts.bounds import ModelName, Revision, require_at_most
from poolbench.contracts.measures import measures_table
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import ARROW_STREAM
from poolbench.directions.sae import SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, WEIGHTS_FILE
from poolbench.errors import ConfigError, InputError, shown
from poolbench.http.openai_routes import METHODS, OpenAIRoute, openai_errors, refusal
from poolbench.http.openapi import BINARY, Responses, errors, example
from poolbench.model_folders.folders import requested_model
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import words_by_passage
from poolbench.settings import ClusterSettings, ExtractorSettings
from poolbench.statuses import Status
from poolbench.steps.extractor import (
    ANNOTATIONS,
    AUTOENCODER,
    CALIBRATE,
    CALIBRATION,
    COORDINATES,
    COUNT,
    DAMAGE,
    DIRECTIONS,
    EXTRACT,
    FEATURES,
    FEATURES_OF,
    FREQUENCIES,
    LENS,
    PASSAGES,
    RANDOM_FEATURES,
    RECOVERED,
    STATES,
    STEERED_TEXTS,
    TRAINED_DIRECTION,
    VECTORS,
    ExtractParams,
    ReadingParams,
)
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_extractor import core
from poolbench_extractor.config import (
    BatchLimits,
    EmbedAnswer,
    EmbedRequest,
    ExplainAnswer,
    ExplainRequest,
    ModelAnswer,
)
from poolbench_extractor.core import calibrate
from poolbench_extractor.damage import damage, edits_of, lens
from poolbench_extractor.embedding import openai
from poolbench_extractor.embedding import texts as embedding
from poolbench_extractor.embedding.explained import explain
from poolbench_extractor.encode import Frequencies, PassageTexts, Reading, count_tokens, tokenise
from poolbench_extractor.erasing import Erased
from poolbench_extractor.features import Encoder, autoencoder, coordinates, random_twin, read_features
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import DecoderCache, describe, tokenizer_of
from poolbench_extractor.recovered import recovered
from poolbench_extractor.trained import trained_direction


class ExtractorService:
    """Service that extracts vectors and features. It keeps the last requested model loaded."""

    name = "extractor"
    pauses_for_requests = True

    def __init__(self, deployment: ExtractorSettings) -> None:
        self.handlers = {
            EXTRACT.kind: self.extract,
            FEATURES_OF.kind: self.features,
            RECOVERED.kind: self.recovered,
            CALIBRATE.kind: self.calibrate,
            COUNT.kind: self.count,
            STEERED_TEXTS.kind: self.damage,
            TRAINED_DIRECTION.kind: self.train,
        }
        self._deployment = deployment
        self._models = DecoderCache(deployment)

    def extract(self, task: Task, io: TaskIO) -> None:
        """Write the missing outputs: vectors by strategy and layer, and per-token states."""
        params = EXTRACT.params_of(task)
        with self._models.using(params.reference(), params.change) as decoder:
            requests, keep = missing_outputs(params, io.missing)
            passages = read_passages(task, io)
            erased = None if params.erased_layer is None else Erased.of(params.erased_layer, io.table(DIRECTIONS()))
            reading = replace(reading_of(params, decoder.device), sinks=params.sink_rule, erased=erased)
            num_passages, num_sets = len(passages.ids), sum(map(len, requests.values()))
            size = f"{num_passages:,} passages x {num_sets:,} strategies and layers x width {decoder.width:,}"
            num_bytes = 4.0 * num_passages * num_sets * decoder.width
            require_at_most(f"{size} are so many bytes", num_bytes, MAX_VECTOR_BYTES, "plan smaller tasks")
            meta = {"model_revision": decoder.revision}
            with ExitStack() as stack:  # kept states are committed last: where they are, the vectors are too
                sinks = {layer: stack.enter_context(io.writing_shards(STATES(layer), meta)) for layer in keep}
                with reporting(decoder.device, io):
                    tables = core.extract(
                        decoder, passages, requests, keep=sinks, reading=reading, progress=io.progress
                    )
                io.write_tables(tables, meta)

    def features(self, task: Task, io: TaskIO) -> None:
        """Write the missing outputs: pooled features of autoencoders, random directions and coordinates."""
        params = FEATURES_OF.params_of(task)
        with self._models.using(params.reference()) as decoder:
            encoders, passages = missing_encoders(task, io, decoder, params.seed), read_passages(task, io)
            reading = replace(reading_of(params, decoder.device), sinks=params.sink_rule)
            with reporting(decoder.device, io):
                marks = marks_of(io.table(PASSAGES()))
                tables = read_features(
                    decoder, passages, encoders, params.layer, marks=marks, reading=reading, progress=io.progress
                )
            io.write_tables(tables, {"model_revision": decoder.revision})

    def recovered(self, task: Task, io: TaskIO) -> None:
        """Write the missing outputs: loss recovered and the share of dense features of each encoder."""
        params = RECOVERED.params_of(task)
        with self._models.using(params.reference()) as decoder:
            encoders, passages = missing_encoders(task, io, decoder, params.seed), read_passages(task, io)
            reading, table = replace(reading_of(params, decoder.device), sinks=params.sink_rule), io.table(PASSAGES())
            groups = table["group"].to_pylist() if "group" in table.column_names else ()
            drawn: dict[str, Any] = {"groups": groups, "num_bootstrap": params.num_bootstrap, "seed": params.seed}
            with reporting(decoder.device, io):
                measures_by_role = recovered(
                    decoder, passages, encoders, params.layer, **drawn, reading=reading, progress=io.progress
                )
            tables = {role: measures_table(measures) for role, measures in measures_by_role.items()}
            io.write_tables(tables, {"model_revision": decoder.revision})

    def calibrate(self, task: Task, io: TaskIO) -> None:
        """Write the median residual norm of each layer on the calibration texts."""
        params = CALIBRATE.params_of(task)
        with self._models.using(params.reference()) as decoder:
            passages, reading = read_passages(task, io), reading_of(params, decoder.device)
            with reporting(decoder.device, io):
                table = calibrate(decoder, passages, params.layers, reading=reading, progress=io.progress)
            for role in sorted(io.missing):
                io.write_table(role, table, meta={"model_revision": decoder.revision})

    def damage(self, task: Task, io: TaskIO) -> None:
        """Write the missing outputs: effects of steering on given texts, and the tokens that directions promote."""
        params = STEERED_TEXTS.params_of(task)
        passages = read_passages(task, io)
        unit = 1.0 if params.alpha_unit == "absolute" else norm_at(io.table(CALIBRATION()), params.layer)
        edits = edits_of(io.table(DIRECTIONS()), params.direction_ids, params.strengths, unit)
        num_texts = len(passages.ids) * (1 + len(edits))
        require_at_most("texts, each under every edit,", num_texts, MAX_EDITED_TEXTS, "plan smaller tasks")
        with self._models.using(params.reference()) as decoder:
            reading = reading_of(params, decoder.device)
            with reporting(decoder.device, io):
                figures, tokens = damage(decoder, passages, edits, params.layer, reading=reading, progress=io.progress)
            unit_by_id = {edit.direction_id: edit.unit_D for edit in edits}
            lenses = [lens(decoder, direction_id, unit_D) for direction_id, unit_D in unit_by_id.items()]
            tables = {DAMAGE(): figures, LENS(): pa.concat_tables([*lenses, tokens])}
            missing = {role: table for role, table in tables.items() if role in io.missing}
            io.write_tables(missing, {"model_revision": decoder.revision})

    def train(self, task: Task, io: TaskIO) -> None:
        """Train a steering vector on passages and write its direction."""
        params, passages = TRAINED_DIRECTION.params_of(task), io.table(PASSAGES())
        with self._models.using(params.reference()) as decoder:
            reading = reading_of(params, decoder.device)
            with reporting(decoder.device, io):
                direction, losses = trained_direction(decoder, passages, params, reading=reading, progress=io.progress)
            row = {"direction_id": direction.id, "vector": direction.vector.tolist(), "raw_norm": direction.raw_norm}
            table = table_from_rows(
                [row | {"seed": direction.seed, "status": Status.OK}], directions_schema(decoder.width)
            )
            meta = {
                "model_revision": decoder.revision,
                "first_loss": f"{losses[0]:.4f}",
                "last_loss": f"{losses[-1]:.4f}",
            }
            io.write_table(DIRECTIONS(), table, meta=meta)

    def count(self, task: Task, io: TaskIO) -> None:
        """Count each token in all passages. Only the tokenizer is loaded."""
        params = COUNT.params_of(task)
        tokenizer = tokenizer_of(params.reference(), self._deployment)
        tables = (io.table(role) for role in sorted(task.inputs))
        texts = (PassageTexts(table["passage_id"].to_pylist(), table["text"].to_pylist()) for table in tables)
        read = partial(tokenise, tokenizer, include_bos=params.include_bos, add_bos=params.add_bos)
        contexts = (context for passages in texts for context in read(passages))
        io.write_table(FREQUENCIES(), count_tokens(contexts))

    def embed(self, request: EmbedRequest, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        """Return vectors of texts as JSON, or as an Arrow stream if accepted; a text that fails is a row."""
        pooling = embedding.unsupervised(request.strategy, request.params)
        passages = embedding.passages_of(request, pooling)
        with self._models.using(request.reference()) as decoder:
            table = embedding.embed(decoder, request, pooling, passages)
        if ARROW_STREAM in accept:
            return Response(embedding.as_stream(table), media_type=ARROW_STREAM)
        return JSONResponse(embedding.as_json(table))

    def embeddings(self, request: openai.EmbeddingsRequest) -> JSONResponse:
        """Return vectors as the OpenAI API does, of the model `MODEL+STRATEGY@LAYER`; a failed text is an error."""
        name = openai.EmbeddingName.parse(request.model)
        pooling = openai.pooling_of(name)
        with self._models.using(requested_model(name.model)) as decoder:
            return JSONResponse(openai.answer(decoder, request, pooling))

    def explain(self, request: ExplainRequest) -> JSONResponse:
        """Return what each token of the texts adds to their vectors, and activations of features of an autoencoder."""
        pooling = embedding.unsupervised(request.strategy, request.params)
        passages = embedding.passages_of(request, pooling)
        with self._models.using(request.reference()) as decoder:
            key, encoder = request.autoencoder, None
            if key is not None:
                artifacts = Artifacts(open_store(ClusterSettings.load().store_uri))
                encoder = read_autoencoder(partial(artifacts.read, key), key, decoder)
            return JSONResponse(explain(decoder, request, pooling, passages, encoder))

    def model(self, model: ModelName = "demo", revision: Literal[""] | Revision = "") -> dict[str, Any]:
        """Return revision, depth, width, window, architecture and size of a model, without loading its weights."""
        return describe(requested_model(model, revision=revision or None))

    def routes(self, router: APIRouter) -> None:
        """Add `POST /embed`, `POST /v1/embeddings`, `POST /explain` and `GET /model`."""
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
            "/explain",
            self.explain,
            methods=["POST"],
            response_model=ExplainAnswer,
            responses=errors(404),
            openapi_extra=example({"texts": ["The tide was high."], "strategy": "A2_max", "layer": -1}),
        )
        router.add_api_route(
            "/model",
            self.model,
            methods=["GET"],
            response_model=ModelAnswer,
            responses=errors(400, 404, 422, body=False),
        )
        options: dict[str, Any] = {"route_class_override": OpenAIRoute, "response_model": None}
        embeddings: Responses = {200: {"model": openai.EmbeddingsAnswer}, **openai_errors(404)}
        router.add_api_route(
            "/v1/embeddings",
            self.embeddings,
            methods=["POST"],
            responses=embeddings,
            openapi_extra=example({"model": "demo+A1_mean@4", "input": ["The tide was high."]}),
            **options,
        )
        refuse = refusal(router.routes[-1:])
        router.add_api_route("/v1/{path:any_path}", refuse, methods=[*METHODS], include_in_schema=False, **options)

    def release_memory(self) -> None:
        """Unload the model if it is not in use. The next task or request loads it again."""
        self._models.release()

    def loaded_model(self) -> str:
        """Return the id of the loaded model, or "" if no model is loaded."""
        return str(self._models.loaded()["model"] or "")

    def health(self) -> dict[str, Any]:
        """Return the id, revision and device of the loaded model."""
        return self._models.loaded()


def create() -> ExtractorService:
    """Return the service, configured from the environment."""
    disable_progress_bar()
    return ExtractorService(ExtractorSettings.load())


#: Tokens of a batch of a task on a CPU, which takes less than a second: a request waits for one.
_TOKENS_ON_CPU = 2048
#: Bytes of all vectors of one task, which are held until its last passage is done.
MAX_VECTOR_BYTES = 64 * 2**30
#: Characters of all passages of one task.
MAX_TASK_CHARACTERS = 1_000_000_000
#: Texts of one task of `extractor.damage`, each counted once for each edit.
MAX_EDITED_TEXTS = 1_000_000


def read_passages(task: Task, io: TaskIO) -> PassageTexts:
    """Return the passages of a task, with the annotations and token frequencies that the task has.

    Raises:
        InputError: The task has no passages.
        TooLargeError: The passages are too long together.
    """
    table = io.table(PASSAGES())
    if table.num_rows == 0:
        raise InputError(f"task {task.task_id} ({task.kind}): the passages are empty")
    characters = sum(len(text or "") for text in table["text"].to_pylist())
    require_at_most("characters in passages", characters, MAX_TASK_CHARACTERS, "plan smaller tasks")
    words = words_by_passage(io.table(ANNOTATIONS())) if ANNOTATIONS() in task.inputs else {}
    frequencies = Frequencies.from_table(io.table(FREQUENCIES())) if FREQUENCIES() in task.inputs else None
    spans = [(span["start"], span["end"]) for span in table["span"].to_pylist()] if "span" in table.column_names else []
    bare = table["bare"].to_pylist() if "bare" in table.column_names else []
    return PassageTexts(table["passage_id"].to_pylist(), table["text"].to_pylist(), words, frequencies, spans, bare)


def norm_at(calibration: pa.Table, layer: int) -> float:
    """Return the median residual norm of a layer, which is the unit of steering strengths.

    Raise InputError if the calibration lacks the layer.
    """
    norms = dict(zip(calibration["layer"].to_pylist(), calibration["median_residual_norm"].to_pylist(), strict=True))
    if layer not in norms:
        raise InputError(f"the calibration has no layer {layer}; it has {', '.join(map(str, norms))}")
    return float(norms[layer])


def missing_encoders(task: Task, io: TaskIO, decoder: Decoder, seed: int) -> dict[str, Encoder]:
    """Return the encoder of each missing output: an autoencoder, its random twin, or the coordinates."""
    encoders: dict[str, Encoder] = {COORDINATES(): coordinates(decoder.width)} if COORDINATES() in io.missing else {}
    for role, at in AUTOENCODER.among(task.inputs):
        roles = {FEATURES(*at), RANDOM_FEATURES(*at)} & io.missing
        if not roles:
            continue
        encoder = read_autoencoder(partial(io.file, role), role, decoder)
        twin = random_twin(encoder, decoder.width, seed, decoder.device) if RANDOM_FEATURES(*at) in roles else encoder
        encoders |= {role: encoder if FEATURES.parse(role) else twin for role in sorted(roles)}
    return encoders


def read_autoencoder(read: Callable[[str], bytes], name: str, decoder: Decoder) -> Encoder:
    """Read an autoencoder from its files. Raise InputError if its width differs from the model's."""
    sae = SparseAutoencoder.from_bytes(read(WEIGHTS_FILE), read(CONFIG_FILE))
    if sae.width != decoder.width:
        raise InputError(f"{name}: the autoencoder reads width {sae.width}; {decoder.source} has {decoder.width}")
    return autoencoder(sae, decoder.device)


def marks_of(passages: pa.Table) -> list[list[tuple[int, int]]]:
    """Return the marked character ranges of each passage, or empty lists if the table has no column `marks`."""
    if "marks" not in passages.column_names:
        return [[] for _ in range(passages.num_rows)]
    return [[(mark["start"], mark["end"]) for mark in marks or ()] for marks in passages["marks"].to_pylist()]


@contextmanager
def reporting(device: torch.device, io: TaskIO) -> Iterator[None]:
    """Report the seconds and the peak memory of a `with` block on a GPU.

    On a CPU, nothing is reported, because the worker's own values are right.
    """
    if device.type != "cuda":
        yield
        return
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    yield
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    io.report(device_s=time.perf_counter() - start, peak_bytes=peak)


def reading_of(params: ReadingParams, device: torch.device) -> Reading:
    """Return the settings for tokens and batches. Batches are smaller on a CPU."""
    limits = BatchLimits(max_tokens=_TOKENS_ON_CPU) if device.type == "cpu" else BatchLimits()
    return Reading(params.include_bos, params.add_bos, params.max_length, limits)


def missing_outputs(params: ExtractParams, missing: Iterable[str]) -> tuple[dict[int, list[Request]], list[int]]:
    """Return the requests of each layer, and the layers whose states are stored, for the missing outputs.

    Raise ConfigError if a role names a strategy that the task does not have.
    """
    requests = {entry.id: Request.of(entry.id, entry.params) for entry in params.strategies}
    missing = set(missing)
    keep = [at.layer for _, at in STATES.among(missing)]
    requests_by_layer: dict[int, list[Request]] = {}
    for role, cell in VECTORS.among(missing):
        if STATES.parse(role) is not None:
            continue
        if cell.strategy not in requests:
            raise ConfigError(f"output role {shown(role)} names none of the strategies {', '.join(requests) or 'none'}")
        requests_by_layer.setdefault(cell.layer, []).append(requests[cell.strategy])
    return requests_by_layer, keep
