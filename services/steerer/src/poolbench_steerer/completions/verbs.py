"""`/v1/completions`, `/v1/chat/completions` and `/v1/models`."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from poolbench.contracts.wire import END_OF_STREAM, EVENT_STREAM
from poolbench.errors import InputError, TooLargeError
from poolbench.http.openai_routes import METHODS, OpenAIRoute, describe, openai_errors, refusal
from poolbench.http.openapi import Responses, example
from poolbench.telemetry.ids import engine_request_id
from poolbench_steerer.completions.answers import (
    ChatChunk,
    ChatCompletion,
    CompletionAnswer,
    CompletionChunk,
    ModelList,
    ModelObject,
    responses,
)
from poolbench_steerer.completions.body import ChatBody, CompletionBody
from poolbench_steerer.completions.names import TokenNames
from poolbench_steerer.completions.vllm_server import VllmServer
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import StreamBrokenError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.bounds import Name
from poolbench_steerer.http.leaving import until_disconnect
from poolbench_steerer.http.named import Named
from poolbench_steerer.http.served import MeantModel, ServedVectors
from poolbench_steerer.http.steering import resolve, resolve_readings, units_of
from poolbench_steerer.http.verbs import Admission
from poolbench_steerer.server.facts import Call, Facts
from poolbench_steerer.server.fields import Fields, Resolved
from poolbench_steerer.tokens import Tokens

if TYPE_CHECKING:
    from vllm import SamplingParams

MAX_LOGPROB_VALUES = 2**19
MAX_POOLED_VALUES = 2**21
Answers = AsyncGenerator[dict[str, Any], None]


class CompletionVerbs:
    """The OpenAI API for completions and chats: vLLM's server on the engine of a host."""

    def __init__(
        self,
        host: EngineHost,
        admission: Admission,
        named: Named,
        served: ServedVectors,
    ) -> None:
        self.host = host
        self.admission = admission
        self.named = named
        self.served = served

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        options: dict[str, Any] = {"route_class_override": OpenAIRoute, "response_model": None}
        first = len(router.routes)
        router.add_api_route(
            "/v1/completions",
            self.complete,
            methods=["POST"],
            responses=responses(CompletionAnswer, CompletionChunk),
            openapi_extra=example(
                {"prompt": "The tide was", "max_tokens": 4},
                pooled={"prompt": "The tide was", "max_tokens": 4, "reading": {"layer": 2, "pool": ["A1_mean"]}},
            ),
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
        return await _response(self._answers(body, await self.served.meaning(body.model)), body, request)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Answer the last message as the OpenAI API does, by the model's own chat template; fields as above."""
        return await _response(self._answers(body, await self.served.meaning(body.model)), body, request)

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

    async def _answers(self, body: CompletionBody | ChatBody, meant: MeantModel) -> Answers:
        """Yield the answer, or the chunks of a stream. When it ends or is closed, resources are released."""
        if None not in (meant.steering, body.steering):
            raise InputError(f"the model {meant.id} is steered already; name {meant.ref.id}, or leave out steering")
        model = meant.ref
        with self.admission.texts(body.num_choices):
            steering = meant.steering or await self.named.steering(model, body.steering)
            fields = Fields(steering, tuple(body.readings), isinstance(body.reading, list))
            fields = fields.with_directions(await self.named.readings(model, fields.directions))
            units = await units_of(self.host, model, steering)
            tokens = await self.host.tokens(model)
            job = _Job(body, meant, fields, units, tokens, self.host.config.tool_parser)
            async with aclosing(self.host.stream(model, job.run)) as answers:
                async for answer in answers:
                    yield answer


class _Job:
    """One request on the engine. After the death of an engine, it runs again unless its stream has begun."""

    def __init__(
        self,
        body: CompletionBody | ChatBody,
        meant: MeantModel,
        fields: Fields,
        units: list[float],
        tokens: Tokens,
        tool_parser: str | None,
    ) -> None:
        self._body, self._meant, self._fields, self._units = body, meant, fields, units
        self._tool_parser, self._tokens = tool_parser, tokens
        # A text without a seed is sampled with a random one, which the response contains.
        self._seed = body.seed if body.seed is not None else random.getrandbits(31)
        self._begun = False

    async def run(self, engine: SteeringEngine, emit: Callable[[dict[str, Any]], None]) -> None:
        """Emit the answer, or the chunks of a stream. Raise StreamBrokenError after the death of its engine."""
        if self._begun:
            raise StreamBrokenError("the engine died during the stream; send the request again")
        server = await self._server(engine)
        steering = await resolve(engine, self._fields.steering, self._units)
        readings = await resolve_readings(engine, self._fields.directions)
        wish = Resolved(self._fields, steering, readings).checked(engine)
        _check_pooled(wish, self._body.num_choices, engine.bank.width)
        echo, num_new = bool(self._body.echo), self._body.num_new
        check = _PromptBounds(engine, num_new).check
        call = Call(wish, echo, echo and not num_new, self._echoed if echo else None, check=check)
        facts = Facts(call, self._meant.id, self._seed)
        names = None if self._body.return_tokens_as_token_ids else TokenNames(self._tokens)
        values = self._body.values() | {
            "model": engine.model.id, "seed": self._seed, "request_id": engine_request_id(),
            "return_tokens_as_token_ids": True,
        }  # fmt: skip
        if not self._body.stream:
            emit(_named(names, facts.added(await server.whole(call, values))))
            return
        async with aclosing(server.chunks(call, values)) as chunks:
            async for chunk in chunks:
                emit(_named(names, facts.added(chunk)))
                self._begun = True

    def _echoed(self, number: int, prompt_ids: Sequence[int]) -> str:
        """Return a prompt as text: vLLM's text of token ids has special tokens, and an empty prompt has none there."""
        assert isinstance(self._body, CompletionBody)
        prompt = self._body.prompts[number]
        return prompt if isinstance(prompt, str) else self._tokens.decode(prompt_ids)

    async def _server(self, engine: SteeringEngine) -> VllmServer:
        """Return the server of an engine, which the first request makes, and which outlives that request."""
        if engine.server is None:
            engine.server = asyncio.create_task(VllmServer.on(engine, self._tool_parser))
        try:
            server: VllmServer = await asyncio.shield(engine.server)
        except Exception:
            engine.server = None  # the next request tries again
            raise
        return server


def _named(names: TokenNames | None, answer: dict[str, Any]) -> dict[str, Any]:
    if names is not None:
        for choice in answer["choices"]:
            names.name(choice)
    return answer


def _check_pooled(wish: Resolved, num_choices: int, width: int) -> None:
    """Raise TooLargeError if the answer would hold too many numbers of pooled vectors."""
    num_values = 0 if wish.pooling is None else 2 * num_choices * len(wish.pooling.strategies) * width
    if num_values > MAX_POOLED_VALUES:
        raise TooLargeError(
            f"the answer would hold {num_values} numbers of pooled vectors (2 x texts x strategies x {width}), at most "
            f"{MAX_POOLED_VALUES} are sent for one request; send fewer texts or strategies at a time"
        )


class _PromptBounds:
    """The bounds of a request that depend on the tokens of its prompts."""

    def __init__(self, engine: SteeringEngine, num_new: int) -> None:
        self._engine, self._num_new = engine, num_new
        self._vocabulary = engine.llm.model_config.get_vocab_size()
        self._num_prompts = self._num_logprobs = 0

    def check(self, prompt_ids: Sequence[int], params: "SamplingParams") -> None:
        """Take the next prompt.

        Raises:
            PromptTooLongError: The window of the model has no room for the new tokens. vLLM would generate fewer.
            InputError: The model does not have a token.
            TooLargeError: The prompts so far have more log-probabilities than the service keeps for a request.
        """
        what = f"prompt {self._num_prompts}"
        self._num_prompts += 1
        self._engine.limits.check_room(len(prompt_ids), max(1, self._num_new), what, spare=0)
        if (largest := max(prompt_ids, default=0)) >= self._vocabulary:
            raise InputError(f"token id {largest} of {what} is out of range: the model has 0..{self._vocabulary - 1}")
        if params.logprobs is None:
            return
        num_tokens = self._num_new + (0 if params.prompt_logprobs is None else len(prompt_ids))
        self._num_logprobs += num_tokens * params.n * (params.logprobs + 1)
        if self._num_logprobs > MAX_LOGPROB_VALUES:
            raise TooLargeError(
                f"the answer would hold {self._num_logprobs} log-probabilities (tokens x (logprobs + 1)) after "
                f"{self._num_prompts} prompts, at most {MAX_LOGPROB_VALUES} are computed for one request; send fewer "
                "prompts at a time, or lower logprobs"
            )


async def _response(answers: Answers, body: CompletionBody | ChatBody, request: Request) -> Response:
    # Errors before the first token have a status of their own; later ones are an event.
    first = await until_disconnect(request, _first(answers))
    if body.stream:
        return StreamingResponse(_events(first, answers), media_type=EVENT_STREAM)
    await answers.aclose()
    return JSONResponse(first)


async def _first(answers: Answers) -> dict[str, Any]:
    return await anext(answers)


async def _events(first: dict[str, Any], answers: Answers) -> AsyncIterator[str]:
    try:
        async with aclosing(answers):
            yield _event(first)
            async for chunk in answers:
                yield _event(chunk)
    except Exception as error:
        yield _event(describe(error)[1])
        return
    yield f"data: {END_OF_STREAM}\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _model_body(name: str, root: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "poolbench", "root": root}
