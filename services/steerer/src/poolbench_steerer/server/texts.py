"""The texts of vLLM's OpenAI server: each one that is steered or read along has a row of the worker's table."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError, PoolbenchError
from poolbench_steerer.engine import GenerationRequest, Piece, SteeringEngine
from poolbench_steerer.http.bounds import MAX_SEED
from poolbench_steerer.http.steering import stop_rules
from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.server.facts import Call, TextFacts
from poolbench_steerer.server.fields import READING, STEERING, Fields, Resolved, resolved
from poolbench_steerer.server.files import NamedVector

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

Outputs = AsyncGenerator["RequestOutput", None]

#: The request that a text is generated for; vLLM's own tasks for it inherit this.
CALL: ContextVar[Call | None] = ContextVar("poolbench_steering_call", default=None)


class ServedTexts:
    """The texts of a server on an engine, which are steered as their requests say."""

    def __init__(self, engine: SteeringEngine, vectors: Mapping[str, NamedVector]) -> None:
        """Let every text of the server pass through `texts`. `vectors` can be named in `vllm_xargs`."""
        self._engine, self._vectors = engine, vectors
        engine.llm.generate = self.texts  # type: ignore[method-assign,assignment]

    def texts(self, prompt: Any, sampling_params: "SamplingParams", request_id: str, **options: Any) -> Outputs:
        """Generate the n texts of a prompt, in the place of vLLM's `generate`.

        Raises:
            VLLMValidationError: The request asks for steering that is not possible.
            ReceiptError: A text was not steered as requested, and is discarded.
        """
        from vllm.exceptions import VLLMValidationError

        extra = sampling_params.extra_args or {}
        if WIRE_KEY in extra:
            raise VLLMValidationError(f"vllm_xargs.{WIRE_KEY} is between server and engine; send {STEERING}")
        call = CALL.get()
        if (call is None or call.wish is None) and not {STEERING, READING} & extra.keys():
            return self._engine.vllm_generate(prompt, sampling_params, request_id, **options)
        call = call or Call()
        if call.check is not None:
            call.check(prompt["prompt_token_ids"], sampling_params)
        return self._several(call, next(call.prompts), prompt, sampling_params, request_id, options)

    async def _several(
        self, call: Call, number: int, prompt: Any, params: "SamplingParams", request_id: str, options: dict[str, Any]
    ) -> Outputs:
        """Generate n texts as n requests, because a row belongs to one; the outputs are those of vLLM for one."""
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind
        from vllm.utils.async_utils import merge_async_iterators

        params = params.clone()
        params.extra_args = dict(params.extra_args or {})
        num_texts, params.n = params.n, 1
        try:
            fields = Fields.taken_from(params.extra_args)
            wish = call.wish or await resolved(self._engine, fields, self._vectors)
            facts = [call.texts.setdefault(number * num_texts + index, TextFacts()) for index in range(num_texts)]
            texts = []
            for index, text in enumerate(facts):
                own = params.clone()
                if params.seed is not None:
                    own.seed = (params.seed + index) % (MAX_SEED + 1)
                name = request_id if num_texts == 1 else f"{index}_{request_id}"
                texts.append(self._text(call, number, text, wish, prompt, own, name, options))
            whole: list[RequestOutput] = []
            async with aclosing(merge_async_iterators(*texts)) as outputs:
                async for index, output in outputs:
                    output.outputs[0].index = index
                    output.request_id = request_id
                    if num_texts > 1 and params.output_kind == RequestOutputKind.FINAL_ONLY:
                        whole.append(output)
                        continue
                    yield output
            if whole:
                whole[0].outputs = sorted((output.outputs[0] for output in whole), key=lambda one: one.index)
                yield whole[0]
        except Exception as error:
            call.error = call.error or error
            if isinstance(error, PoolbenchError) and error.http_status < 500:
                raise VLLMValidationError(str(error)) from error
            raise

    async def _text(
        self, call: Call, number: int, text: TextFacts, wish: Resolved, prompt: Any, params: "SamplingParams",
        request_id: str, options: dict[str, Any],
    ) -> Outputs:  # fmt: skip
        """Generate one text. Its last output comes after its receipt."""
        request = _request(call, prompt, params, wish)
        with self._engine.bank.in_use(request.vector_ids) as slots:
            outputs = self._engine.outputs(request, params, slots, prompt=prompt, request_id=request_id, **options)
            async with aclosing(outputs):
                async for output, generated in outputs:
                    piece = _without_tokens(output, generated) if call.echo_alone else generated
                    if call.echoed is not None:
                        output.prompt = call.echoed(number, request.prompt_ids)
                    if piece.token_ids or piece.finish_reason is not None:
                        text.pieces.append(replace(piece, logprobs=None, prompt_logprobs=None))
                    yield output


def _request(call: Call, prompt: Any, params: "SamplingParams", wish: Resolved) -> GenerationRequest:
    """Return what a text asks of steering; raise InputError for a prompt that is not made of tokens."""
    kind = prompt.get("type") if isinstance(prompt, dict) else None
    if kind != "token":
        raise InputError(f"steering and reading along take prompts of text or token ids, not of kind {kind!r}")
    if params.max_tokens is None:
        raise InputError("give max_tokens with steering")
    return GenerationRequest(
        tuple(prompt["prompt_token_ids"]),
        params.max_tokens,
        wish.steering,
        readings=wish.readings,
        stops=stop_rules(wish.fields.directions),
        read_prompt=call.echo and bool(wish.readings),
        pooling=wish.pooling,
    )


def _without_tokens(output: "RequestOutput", piece: Piece) -> Piece:
    """Remove the token of a text that is to have none, because vLLM generates at least one. Return the piece."""
    text = output.outputs[0]
    text.text, text.token_ids, text.finish_reason = "", [], "length"
    text.logprobs = text.logprobs and []
    return Piece((), None, "length", prompt_scores=piece.prompt_scores, receipt=piece.receipt, pooled=piece.pooled)
