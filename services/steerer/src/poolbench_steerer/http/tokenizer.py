"""The model's tokenizer over HTTP, as vLLM's server offers it: evaluation harnesses count tokens with it."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from poolbench.errors import InputError
from poolbench.http.openapi import errors, example
from poolbench_steerer.host import EngineHost
from poolbench_steerer.http.answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo
from poolbench_steerer.http.bounds import MAX_PROMPT_TOKENS, Name, RequestBody, Text, TokenId
from poolbench_steerer.http.steering import model_of
from poolbench_steerer.tokens import Tokens


class TokenizeBody(RequestBody):
    """A text to split into tokens."""

    prompt: Text
    add_special_tokens: bool = True
    model: Name | None = None


class DetokenizeBody(RequestBody):
    """Tokens to join to a text, special ones included."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]
    model: Name | None = None


class TokenizerVerbs:
    """`/tokenize`, `/detokenize` and `/tokenizer_info`; none of them loads a model."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host

    def add_to(self, router: APIRouter) -> None:
        """Register the verbs."""
        text, tokens = example({"prompt": "The tide was"}), example({"tokens": [1, 2]})
        router.post("/tokenize", response_model=TokenizeAnswer, responses=errors(404), openapi_extra=text)(
            self.tokenize
        )
        router.post("/detokenize", response_model=DetokenizeAnswer, responses=errors(404), openapi_extra=tokens)(
            self.detokenize
        )
        router.get("/tokenizer_info", response_model=TokenizerInfo, responses=errors(400, 404, 422, body=False))(
            self.info
        )

    async def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """Return token ids of a text."""
        tokens = await self._tokens(body.model)
        encode = tokens.encode if body.add_special_tokens else tokens.encode_plain
        ids = await asyncio.to_thread(encode, body.prompt)
        return {"tokens": list(ids), "count": len(ids)}

    async def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        """Return text of token ids."""
        tokens = await self._tokens(body.model)
        wrong = next((token for token in body.tokens if token >= tokens.size), None)
        if wrong is not None:
            raise InputError(f"token id {wrong} is out of range: the tokenizer has 0..{tokens.size - 1}")
        return {"prompt": await asyncio.to_thread(tokens.decode_all, body.tokens)}

    async def info(self, model: Name | None = None) -> dict[str, Any]:
        """Return class, size, special tokens and chat template of the tokenizer."""
        return (await self._tokens(model)).info

    async def _tokens(self, name: str | None) -> Tokens:
        return await self.host.tokens(await model_of(self.host, name))
