"""HTTP verbs for ad-hoc requests; they call what the queue handlers call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from poolbench.config import ModelRef, StrictModel, resolve_model
from poolbench.errors import InputError
from poolbench_steerer import core
from poolbench_steerer.engine import Generation, GenerationRequest, SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.perplexity import score_continuations
from poolbench_steerer.plugin.spec import Edit, Steering
from poolbench_steerer.tokens import Tokens, tokens_of

if TYPE_CHECKING:
    from fastapi import APIRouter

MAX_PROMPTS = 1024


class VectorsBody(StrictModel):
    """Vectors to register; they are used as they come, so send unit vectors."""

    vectors: list[list[float]] = Field(min_length=1)
    model: str | None = None


class SteeringBody(StrictModel):
    """How to steer: one vector at one layer.

    ``alpha`` is the coefficient itself; ``strength`` is in mean residual norms of the layer, which are
    measured on the calibration texts unless ``mean_residual_norm`` is given.
    """

    vector: list[float] | None = None
    vector_id: str | None = None
    layer: int
    alpha: float | None = None
    strength: float | None = None
    mean_residual_norm: float | None = Field(default=None, gt=0)
    positions: Literal["generated", "all"] = "generated"

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.vector is None) == (self.vector_id is None):
            raise ValueError("give exactly one of vector and vector_id")
        if (self.alpha is None) == (self.strength is None):
            raise ValueError("give exactly one of alpha and strength")
        return self


class GenerateBody(StrictModel):
    """Prompts to continue, steered or not."""

    prompts: list[str] = Field(min_length=1, max_length=MAX_PROMPTS)
    steering: SteeringBody | None = None
    max_tokens: int = Field(default=40, gt=0)
    temperature: float = Field(default=0.0, ge=0)
    seed: int = 0
    model: str | None = None


class PerplexityBody(StrictModel):
    """Texts to score under the unsteered model, each given the prompt of the same index, if any."""

    texts: list[str] = Field(min_length=1, max_length=MAX_PROMPTS)
    prompts: list[str] | None = None
    model: str | None = None


class Verbs:
    """The verbs, as coroutines of any event loop."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host

    def add_to(self, router: APIRouter) -> None:
        """Registers the verbs."""
        router.post("/vectors")(self.register)
        router.get("/vectors")(self.vectors)
        router.post("/generate")(self.generate)
        router.post("/perplexity")(self.perplexity)

    async def register(self, body: VectorsBody) -> dict[str, Any]:
        """Registers vectors once; the ids stay valid until they are evicted as least recently used."""
        arrays = [_array(vector) for vector in body.vectors]
        ids = await self.host.run_async(self._model(body.model), lambda engine: engine.register(arrays))
        return {"vector_ids": ids}

    async def vectors(self, model: str | None = None) -> dict[str, Any]:
        """The registered vectors, least recently used first."""

        async def job(engine: SteeringEngine) -> dict[str, Any]:
            return {
                "model": engine.model.id,
                "width": engine.bank.width,
                "capacity": engine.bank.capacity,
                "vectors": [
                    {"vector_id": e.vector_id, "norm": float(np.linalg.norm(e.vector)), "in_use": e.users > 0}
                    for e in engine.bank.entries
                ],
            }

        return await self.host.run_async(self._model(model), job)

    async def generate(self, body: GenerateBody) -> dict[str, Any]:
        """Continues prompts, each with a receipt when steered."""
        model = self._model(body.model)
        tokens = await asyncio.to_thread(self._tokens, model)
        unit = await self._unit(model, body.steering)

        async def job(engine: SteeringEngine) -> list[Generation]:
            steering = await _steering(engine, body.steering, unit) if body.steering else None
            requests = [
                GenerationRequest(
                    tokens.encode(prompt),
                    body.max_tokens,
                    steering,
                    temperature=body.temperature,
                    seed=body.seed,
                )
                for prompt in body.prompts
            ]
            return await engine.generate(requests)

        made = await self.host.run_async(model, job)
        return {"model": model.id, "texts": [_answer(generation, tokens) for generation in made]}

    async def perplexity(self, body: PerplexityBody) -> dict[str, Any]:
        """Mean negative log-likelihood (nats a token) and perplexity under the unsteered model."""
        prompts = body.prompts if body.prompts is not None else [""] * len(body.texts)
        if len(prompts) != len(body.texts):
            raise InputError(f"{len(body.texts)} texts need as many prompts, got {len(prompts)}")
        model = self._model(body.model)
        tokens = await asyncio.to_thread(self._tokens, model)
        pairs = [_split(tokens, prompt, text) for prompt, text in zip(prompts, body.texts, strict=True)]
        scored = await self.host.run_async(model, lambda engine: score_continuations(engine, pairs))
        rows = [{"mean_nll": s.mean_nll, "perplexity": s.perplexity, "num_tokens": s.num_tokens} for s in scored]
        return {"model": model.id, "texts": rows}

    async def _unit(self, model: ModelRef, steering: SteeringBody | None) -> float:
        """The alpha of strength 1; 1 where none is needed."""
        if steering is None or steering.strength is None:
            return 1.0
        if steering.mean_residual_norm is not None:
            return steering.mean_residual_norm
        norms = await self.host.residual_norms(model)
        # A layer that does not exist is refused with a better message where the steering is made.
        return norms[steering.layer] if 0 <= steering.layer < len(norms) else 1.0

    def _model(self, name: str | None) -> ModelRef:
        return resolve_model(name or self.host.config.model)

    def _tokens(self, model: ModelRef) -> Tokens:
        return tokens_of(model, trust_remote_code=self.host.config.trust_remote_code)


async def _steering(engine: SteeringEngine, body: SteeringBody, unit: float) -> Steering:
    alpha = body.alpha if body.strength is None else body.strength * unit
    assert alpha is not None  # the body holds one of the two
    engine.check_layer(body.layer)
    vector_id = body.vector_id
    if body.vector is not None:
        (vector_id,) = await engine.register([_array(body.vector)])
    assert vector_id is not None  # the body holds one of the two
    return Steering((Edit(vector_id, body.layer, alpha),), body.positions)


def _array(values: Sequence[float]) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def _split(tokens: Tokens, prompt: str, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prefix and scored ids: without a prompt the tokenizer's own special tokens are the prefix."""
    prefix = tokens.encode(prompt)
    return prefix, tokens.encode_plain(text)


def _answer(made: Generation, tokens: Tokens) -> dict[str, Any]:
    receipt = made.receipt
    return {
        "text": tokens.decode(made.token_ids),
        "num_tokens": len(made.token_ids),
        "finish_reason": made.finish_reason,
        "repeated_4grams": core.repeated_4grams(made.token_ids),
        "receipt": None
        if receipt is None
        else {
            "vector_ids": list(receipt.vector_ids),
            "layers": list(receipt.layers),
            "alphas": list(receipt.alphas),
            "positions_changed": receipt.positions_changed,
            "positions_expected": receipt.positions_expected,
        },
    }
