"""`/v1/completions`, `/v1/chat/completions` and `/v1/models`."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from poolbench.contracts.wire import EVENT_STREAM
from poolbench.errors import InputError
from poolbench.http.openapi import Responses, example
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.bounds import Name
from poolbench_steerer.http.completions.answer import (
    DONE,
    Answer,
    ChatAnswer,
    ChatChunk,
    ChatCompletion,
    CompletionAnswer,
    CompletionChunk,
    ModelList,
    ModelObject,
    event,
    openai_errors,
    responses,
)
from poolbench_steerer.http.completions.body import ChatBody, CompletionBody
from poolbench_steerer.http.completions.errors import METHODS, OpenAIRoute, describe, refusal
from poolbench_steerer.http.completions.run import Completion, Part, check_logprobs, plan_choices
from poolbench_steerer.http.probes import ServedProbes
from poolbench_steerer.http.served import MeantModel, ServedVectors
from poolbench_steerer.http.steering import Directions, units_of
from poolbench_steerer.http.verbs import Admission, until_disconnect
from poolbench_steerer.tokens import Tokens

Parts = AsyncGenerator[tuple[Answer, Part], None]


class CompletionVerbs:
    """The OpenAI API for completions and chats on one engine host."""

    def __init__(
        self,
        host: EngineHost,
        admission: Admission,
        directions: Directions,
        served: ServedVectors,
        probes: ServedProbes,
    ) -> None:
        self.host = host
        self.admission = admission
        self.directions = directions
        self.served = served
        self.probes = probes

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        options: dict[str, Any] = {"route_class_override": OpenAIRoute, "response_model": None}
        first = len(router.routes)
        router.add_api_route(
            "/v1/completions",
            self.complete,
            methods=["POST"],
            responses=responses(CompletionAnswer, CompletionChunk),
            openapi_extra=example({"prompt": "The tide was", "max_tokens": 4}),
            **options,
        )
        router.add_api_route(
            "/v1/chat/completions",
            self.chat,
            methods=["POST"],
            responses=responses(ChatCompletion, ChatChunk),
            openapi_extra=example({"messages": [{"role": "user", "content": "What is a tide?"}], "max_tokens": 4}),
            **options,
        )
        models: Responses = {200: {"model": ModelList}, **openai_errors(body=False)}
        router.add_api_route("/v1/models", self.models, methods=["GET"], responses=models, **options)
        model_responses: Responses = {200: {"model": ModelObject}, **openai_errors(400, 404, body=False)}
        router.add_api_route(
            "/v1/models/{name:any_path}", self.model, methods=["GET"], responses=model_responses, **options
        )
        refuse = refusal(router.routes[first:])
        router.add_api_route("/v1/{path:any_path}", refuse, methods=[*METHODS], include_in_schema=False, **options)

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """Complete prompts as the OpenAI API does; `steering` steers them, and `reading` reads a direction along."""
        return await _answer(self._parts(body, await self.served.meaning(body.model)), body, request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Answer the last message as the OpenAI API does, by the model's own chat template; fields as above."""
        return await _answer(self._parts(body, await self.served.meaning(body.model)), body, request)

    async def models(self) -> dict[str, Any]:
        """Return the configured model, the loaded one, and the steered ones that are served by name."""
        names = dict.fromkeys(filter(None, [self.host.config.model, self.host.health().get("model")]))
        served = await asyncio.to_thread(self.served.facts)
        steered = [_model_body(facts["id"], facts["model"]) for facts in served]
        return {"object": "list", "data": [*(_model_body(name, name) for name in names), *steered]}

    async def model(self, name: Name) -> dict[str, Any]:
        """Return the entry of a model as the list of models has it: a model that could be loaded, or a steered one that
        is served by name.
        """
        return _model_body(name, (await self.served.meaning(name)).ref.id)

    async def _parts(self, request_body: CompletionBody | ChatBody, meant: MeantModel) -> Parts:
        """Yield the parts of all choices as they are generated; resources are released when it ends or is closed."""
        if None not in (meant.steering, request_body.steering):
            raise InputError(f"the model {meant.id} is steered already; name {meant.ref.id}, or leave out steering")
        model = meant.ref
        with self.admission.texts(request_body.num_choices):
            tokens = await self.host.tokens(model)
            body, prompts = await asyncio.to_thread(_encode, request_body, tokens)
            check_logprobs(body, prompts)
            steering = meant.steering or await self.directions.fill(model, body.steering)
            filled = await self.directions.filled(model, await self.probes.filled(model, body.readings))
            reading = filled if isinstance(body.reading, list) else next(iter(filled), None)
            body = body.model_copy(update={"steering": steering, "reading": reading})
            # A text without a seed is sampled with a random one, which the response contains.
            seed = body.seed if body.seed is not None else random.getrandbits(31)
            completion = Completion(
                body, plan_choices(body, prompts, seed), tokens, await units_of(self.host, model, body.steering)
            )
            num_prompt_tokens = sum(map(len, prompts))
            kind = ChatAnswer if isinstance(request_body, ChatBody) else Answer
            echoes = [""] * len(body.prompts) * body.n
            if body.echo:
                texts = [prompt if isinstance(prompt, str) else tokens.decode(prompt) for prompt in body.prompts]
                echoes = [text for text in texts for _ in range(body.n)]
            answer_fields = echoes, num_prompt_tokens, tokens, body.logprobs is not None
            answer = kind(meant.id, seed, *answer_fields, steering, reading)
            async with aclosing(self.host.stream(model, completion.run)) as parts:
                async for part in parts:
                    yield answer, part


async def _answer(parts: Parts, body: CompletionBody | ChatBody, request: Request) -> Response:
    if not body.stream:
        return JSONResponse(await until_disconnect(request, _whole(parts)))
    # Errors before the first token have a status of their own; later ones are an event.
    first = await until_disconnect(request, _first(parts))
    return StreamingResponse(_events(first, parts, body), media_type=EVENT_STREAM)


async def _whole(parts: Parts) -> dict[str, Any]:
    async with aclosing(parts):
        answer_parts = [pair async for pair in parts]
    return await asyncio.to_thread(answer_parts[0][0].whole, [part for _, part in answer_parts])


async def _first(parts: Parts) -> tuple[Answer, Part]:
    return await anext(parts)


async def _events(first: tuple[Answer, Part], parts: Parts, body: CompletionBody | ChatBody) -> AsyncIterator[str]:
    answer, part = first
    try:
        async with aclosing(parts):
            yield answer.chunk(part)
            async for _, part in parts:
                yield answer.chunk(part)
    except Exception as error:
        yield event(describe(error)[1])
        return
    if body.stream_options is not None and body.stream_options.include_usage:
        yield answer.usage_chunk()
    yield DONE


def _encode(request_body: CompletionBody | ChatBody, tokens: Tokens) -> tuple[CompletionBody, list[tuple[int, ...]]]:
    """Return what is to be completed, and its prompts as tokens."""
    if isinstance(request_body, ChatBody):
        ids = tokens.encode_chat(request_body.conversation)
        return request_body.completion(ids), [ids]
    return request_body, [
        tokens.encode(prompt) if isinstance(prompt, str) else tuple(prompt) for prompt in request_body.prompts
    ]


def _model_body(name: str, root: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "poolbench", "root": root}
