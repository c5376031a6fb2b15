"""HTTP verbs for ad-hoc requests, by the same functions as the queue's handlers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from poolbench.errors import InputError
from poolbench.http.openapi import errors, example
from poolbench_steerer.engine import Generation, GenerationRequest, SteeringEngine
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.errors import OverloadedError
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http import bounds
from poolbench_steerer.http.answers import CheckAnswer, GenerateAnswer, PerplexityAnswer
from poolbench_steerer.http.leaving import until_disconnect
from poolbench_steerer.http.named import Named
from poolbench_steerer.http.steering import SteeringBody, model_of, receipt_body, resolve, units_of
from poolbench_steerer.tokens import repeated_4grams


class GenerateBody(bounds.RequestBody):
    """Prompts to continue, steered or not."""

    prompts: bounds.Texts
    steering: SteeringBody | None = None
    max_tokens: int = Field(default=40, gt=0, le=bounds.MAX_NEW_TOKENS)
    temperature: bounds.Temperature = 0.0
    top_p: bounds.TopP = 1.0
    seed: bounds.Seed = 0
    model: bounds.Name | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        bounds.check_total_chars(self.prompts)
        bounds.check_new_tokens(len(self.prompts), self.max_tokens)
        return self


class PerplexityBody(bounds.RequestBody):
    """Texts to score under the unsteered model, each given the prompt of the same index, if any."""

    texts: bounds.Texts
    prompts: bounds.Texts | None = None
    model: bounds.Name | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        bounds.check_total_chars([*self.texts, *(self.prompts or ())])
        return self


class CheckBody(bounds.RequestBody):
    """A model to examine."""

    model: bounds.Name | None = None


class Verbs:
    """The verbs, as coroutines of any event loop."""

    def __init__(self, host: EngineHost, admission: "Admission", named: Named) -> None:
        self.host = host
        self.admission = admission
        self.named = named

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        router.post(
            "/generate",
            response_model=GenerateAnswer,
            responses=errors(403, 404),
            openapi_extra=example({"prompts": ["The tide was"], "max_tokens": 4}),
        )(self.generate)
        text = example({"texts": ["The tide was high."]})
        router.post("/perplexity", response_model=PerplexityAnswer, responses=errors(404), openapi_extra=text)(
            self.perplexity
        )
        router.post("/check", response_model=CheckAnswer, responses=errors(404), openapi_extra=example({}))(self.check)

    async def check(self, body: CheckBody, request: Request) -> dict[str, Any]:
        """Load a model, which runs its self-test, and measure residual norms and attention sinks on 32 texts."""
        return await until_disconnect(request, self.host.examine(await model_of(self.host, body.model)))

    async def generate(self, body: GenerateBody, request: Request) -> dict[str, Any]:
        """Continue prompts, each with a receipt when steered."""
        with self.admission.texts(len(body.prompts)):
            return await until_disconnect(request, self._generate(body))

    async def perplexity(self, body: PerplexityBody, request: Request) -> dict[str, Any]:
        """Return mean negative log-likelihood (nats a token) and perplexity under the unsteered model."""
        with self.admission.texts(len(body.texts)):
            return await until_disconnect(request, self._perplexity(body))

    async def _generate(self, body: GenerateBody) -> dict[str, Any]:
        model = await model_of(self.host, body.model)
        tokens = await self.host.tokens(model)
        prompts = await asyncio.to_thread(lambda: [tokens.encode(prompt) for prompt in body.prompts])
        edits = await self.named.steering(model, body.steering)
        units = await units_of(self.host, model, edits)

        async def job(engine: SteeringEngine) -> list[Generation]:
            steering = await resolve(engine, edits, units)
            requests = [
                GenerationRequest(
                    prompt, body.max_tokens, steering, temperature=body.temperature, top_p=body.top_p, seed=body.seed
                )
                for prompt in prompts
            ]
            return await engine.generate(requests)

        generations = await self.host.run_async(model, job)
        return {
            "model": model.id,
            "texts": [
                {
                    "text": tokens.decode(generation.token_ids),
                    "num_tokens": len(generation.token_ids),
                    "finish_reason": generation.finish_reason,
                    "repeated_4grams": repeated_4grams(generation.token_ids),
                    "receipt": receipt_body(generation.receipt, edits),
                }
                for generation in generations
            ],
        }

    async def _perplexity(self, body: PerplexityBody) -> dict[str, Any]:
        prompts = body.prompts if body.prompts is not None else [""] * len(body.texts)
        if len(prompts) != len(body.texts):
            raise InputError(f"{len(body.texts)} texts need as many prompts, got {len(prompts)}")
        model = await model_of(self.host, body.model)
        tokens = await self.host.tokens(model)
        texts = list(zip(prompts, body.texts, strict=True))
        # Without a prompt the tokenizer's own special tokens are the prefix.
        pairs = await asyncio.to_thread(lambda: [(tokens.encode(p), tokens.encode_plain(text)) for p, text in texts])
        scored = await self.host.run_async(model, lambda engine: score_continuations(engine, pairs))
        rows = [{"mean_nll": s.mean_nll, "perplexity": s.perplexity, "num_tokens": s.num_tokens} for s in scored]
        return {"model": model.id, "texts": rows}


class Admission:
    """Counts the texts that HTTP requests wait for; one event loop uses it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_pending = 0

    @contextmanager
    def texts(self, count: int) -> Iterator[None]:
        """Take `count` places until the block ends; raise OverloadedError when there are fewer."""
        if self.num_pending + count > self.capacity:
            raise OverloadedError(
                f"{self.num_pending} texts are waiting and {count} more would exceed {self.capacity} "
                "(POOLBENCH_STEERER_MAX_PENDING_TEXTS); try again later, or send fewer at a time"
            )
        self.num_pending += count
        try:
            yield
        finally:
            self.num_pending -= count
