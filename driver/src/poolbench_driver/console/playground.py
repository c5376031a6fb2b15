"""The playground: a prompt continued unsteered and steered, side by side, with what a probe reads along.

The page is a script (`pages/front/playground.js`). The routes here are those that it asks: the directions that runs
have made, and what the steerer and the scorer answer. The browser never sees the token of the cluster.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from poolbench.concepts import stay
from poolbench.directions.vector_files import read_vector_file
from poolbench.errors import InputError, PoolbenchError, TooLargeError
from poolbench.library.directions import NamedDirection, NamedDirections
from poolbench_driver.cluster.services import Services
from poolbench_driver.cluster.session import open_artifacts
from poolbench_driver.contract.page import Answer, Page, Span, Table
from poolbench_driver.pages.markup import Html, element
from poolbench_driver.vectors.card import Vector
from poolbench_driver.vectors.exporting import refuse_restricted_vector
from poolbench_driver.vectors.importing import reference_of, require_same_model
from poolbench_driver.vectors.units import field_of, recommended, unit_of

PATH = "/playground"
LINES = "application/x-ndjson"  # one JSON object per line
MAX_BODY_BYTES, MAX_VECTOR_BYTES = 2**20, 2**25
MAX_NEW_TOKENS = 512
#: What the page may ask of the steerer; other fields are refused.
_FIELDS = frozenset(
    ("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "steering", "reading")
)


def playground_page() -> tuple[Page, Html]:
    """Return the page of the playground, and the HTML element that the script of the page fills."""
    answer = Answer(
        [Span("A model, steered as you like.")],
        [
            "The same prompt and seed, unsteered and at up to four strengths. A probe reads along: below each token "
            "stands the projection on a concept's direction of the state from which the token was sampled.",
        ],
    )
    script = element("noscript", "The playground needs scripts; `poolbench-driver steer` does the same in a shell.")
    return Page("Playground", "scores per token", answer, Table.of([], [])), element("div", script, id="playground")


class Playground:
    """The API routes of the playground. They use the services of a cluster and the directions of its runs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._directions = cache(lambda: NamedDirections(open_artifacts(services.settings)))

    def routes(self) -> list[Route]:
        """Return the routes below `/api`."""
        return [
            Route(f"/api{PATH}", self._choices),
            Route(f"/api{PATH}/text", self._text, methods=["POST"]),
            Route(f"/api{PATH}/scores", self._scores, methods=["POST"]),
            Route(f"/api{PATH}/vector", self._vector, methods=["POST"]),
        ]

    async def _choices(self, _request: Request) -> Response:
        """Return the models and directions that a user can choose."""
        return JSONResponse(await run_in_threadpool(self._choices_of_cluster))

    def _choices_of_cluster(self) -> dict[str, Any]:
        directions, note = list[NamedDirection](), ""
        try:
            directions.extend(self._directions().all())
        except PoolbenchError as error:  # the others, and vectors of files, can be used all the same
            note = f"Directions of runs cannot be read here: {error}"
        usable, sensitive = latest(directions)
        models = [model["id"] for model in self._services.get("steerer", "v1/models")["data"]]
        return {
            "models": list(dict.fromkeys([*models, *(one.model for one in usable)])),
            "directions": [{"model": one.model, "best_strength": one.best_strength, **one.facts()} for one in usable],
            "sensitive": sensitive,
            "max_tokens": MAX_NEW_TOKENS,
            "note": note,
        }

    async def _text(self, request: Request) -> Response:
        """Generate one text. Each line of the response is a piece of the text, and the last line may be an error."""
        body = json_object(await _read(request, MAX_BODY_BYTES))
        if unknown := sorted(body.keys() - _FIELDS):
            raise InputError(f"unknown field {unknown[0][:100]!r}; known: {', '.join(sorted(_FIELDS))}")
        num_tokens = body.setdefault("max_tokens", 40)
        if not isinstance(num_tokens, int) or not 1 <= num_tokens <= MAX_NEW_TOKENS:
            raise InputError(f"max_tokens must be a whole number from 1 to {MAX_NEW_TOKENS}")
        is_chat = "messages" in body
        verb = "v1/chat/completions" if is_chat else "v1/completions"
        asked = body | {"stream": True, "logprobs": True if is_chat else 0}  # so that the tokens are named
        events = self._services.stream("steerer", verb, asked)
        # An error before the first token has a status of its own.
        first = await run_in_threadpool(next, events, None)
        return StreamingResponse(_lines(first, events), media_type=LINES)

    async def _scores(self, request: Request) -> Response:
        """Return the P(concept) that a scorer gives each text."""
        body = json_object(await _read(request, MAX_BODY_BYTES))
        asked = {"texts": body.get("texts"), "scorers": [body.get("scorer")]}
        answer = await run_in_threadpool(self._services.post, "scorer", "score", asked)
        return JSONResponse(answer["scorers"][0])

    async def _vector(self, request: Request) -> Response:
        """Register the vectors of a file. Return their ids and layers, and the settings with which they are applied."""
        model, name = request.query_params.get("model", ""), request.query_params.get("name", "vector")[:100]
        data = await _read(request, MAX_VECTOR_BYTES)
        vectors, applied = await run_in_threadpool(vectors_of_file, data, name, model)
        asked = {"model": model, "vectors": [vector.tolist() for vector in vectors.values()]}
        answer = await run_in_threadpool(self._services.post, "steerer", "vectors", asked)
        ids = zip(vectors, answer["vector_ids"], strict=True)
        return JSONResponse({"vectors": [{"layer": layer, "id": vector_id} for layer, vector_id in ids], **applied})


def latest(directions: Iterable[NamedDirection]) -> tuple[list[NamedDirection], list[str]]:
    """Return the usable directions of each concept from the latest run, and the ids of sensitive concepts.

    For each model and concept, the latest run that has directions is used. Directions of sensitive concepts are left
    out.

    Args:
        directions: Directions sorted by run, latest first, and within a concept from best to worst.
    """
    usable, sensitive, runs = [], dict[str, None](), dict[tuple[str, str], str]()
    for one in directions:
        if runs.setdefault((one.model, one.concept), one.run) != one.run:
            continue
        if stay([one.key]):
            sensitive[one.concept] = None
        else:
            usable.append(one)
    return usable, list(sensitive)


def vectors_of_file(data: bytes, name: str, model: str) -> tuple[Mapping[int | None, np.ndarray], dict[str, Any]]:
    """Read the vectors of a file by layer (float32), and the settings with which `steer --vector` applies them.

    If the file names no layer, the key of its vector is None. Of the settings, `size` is the name of the field of an
    edit that holds the strength, `strength` the recommended strength, and `positions` the positions to steer.

    Raises:
        InputError: The file cannot be read, or is meant for another model.
        RestrictedError: The concept of its card is sensitive.
    """
    with tempfile.NamedTemporaryFile() as temporary:
        temporary.write(data)
        temporary.flush()
        path = Path(temporary.name)
        try:
            file = read_vector_file(path)
            vector = Vector.of_file(file)
            require_same_model(file, vector, reference_of(model), "choose its model")
        except InputError as error:
            text = str(error).replace(str(path), name).replace(path.name, name)
            raise InputError(text if text.startswith(name) else f"{name}: {text}") from None
    if vector is not None:
        refuse_restricted_vector(vector)
    unit = unit_of(vector or path, None)
    positions = "generated" if vector is None else vector.card.apply.positions
    return file.vectors, {"size": field_of(unit), "strength": recommended(vector or path, unit), "positions": positions}


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raise InputError if the data is anything else."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InputError("the body must be a JSON object")
    return body


async def _read(request: Request, limit: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLargeError(f"at most {limit >> 20} MiB are taken here")
        chunks.append(chunk)
    return b"".join(chunks)


async def _lines(first: dict[str, Any] | None, events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yield the pieces of a text as lines of JSON. An error is the last line.

    If the client disconnects, generation ends.
    """
    event = first
    try:
        while event is not None:
            if event["choices"]:
                yield f"{json.dumps(piece_of(event['choices'][0]))}\n"
            event = await run_in_threadpool(next, events, None)
    except PoolbenchError as error:
        yield f"{json.dumps({'error': {'code': str(error.code), 'message': str(error)}})}\n"
    finally:
        if isinstance(events, Generator):
            events.close()


def piece_of(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the text, tokens, probe reading and steering receipt of one chunk.

    The form is equal for chunks of completions and of chat completions.
    """
    logprobs = choice.get("logprobs") or {}
    is_chat = "delta" in choice
    tokens = [token["token"] for token in logprobs.get("content") or ()] if is_chat else logprobs.get("tokens", [])
    return {
        "text": choice["delta"].get("content") or "" if is_chat else choice["text"],
        "tokens": tokens,
        "reading": choice.get("reading"),
        "finish_reason": choice["finish_reason"],
        "receipt": choice.get("steering_receipt"),
    }
