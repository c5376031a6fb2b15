"""The texts of vLLM's own server: each one that is steered or read along has a row of the worker's table."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from poolbench.config import ModelRef
from poolbench.errors import InputError, PoolbenchError, ReceiptError
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import GenerationRequest, Piece, SteeringEngine
from poolbench_steerer.engine.launch import device
from poolbench_steerer.engine.requests import Scores, sampling_params
from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.bank import VectorBank, check_change
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.plugin.spec import Edit, Reading
from poolbench_steerer.server.fields import READING, STEERING, Fields, Resolved, resolved
from poolbench_steerer.server.files import NamedVector, check_vectors

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

Outputs = AsyncGenerator["RequestOutput", None]


@dataclass
class TextFacts:
    """The scores of the tokens of one text so far, and its receipt once the text has ended."""

    receipt: Receipt | None = None
    scores: list[Scores] = field(default_factory=list)


@dataclass
class Call:
    """One HTTP request, with its steering fields, and with the facts of its texts by number of the choice."""

    wish: Resolved | None = None
    texts: dict[int, TextFacts] = field(default_factory=dict)
    prompts: Iterator[int] = field(default_factory=count)


#: The HTTP request that a text is generated for; vLLM's own tasks for it inherit this.
CALL: ContextVar[Call | None] = ContextVar("poolbench_steering_call", default=None)


class ServedEngine(SteeringEngine):
    """The engine of vLLM's own server, whose texts are steered as their requests say."""

    vectors: dict[str, NamedVector]
    names: tuple[str, ...]  # of the model, in requests

    @classmethod
    async def around(cls, llm: Any, names: Sequence[str]) -> Self:
        """Wrap an engine of vLLM. After `take_over`, requests can steer."""
        info = (await llm.collective_rpc("steering_info"))[0]
        settings = SteererSettings.load()
        num_seqs = llm.vllm_config.scheduler_config.max_num_seqs
        engine = cls(
            ModelRef(names[0], names[0]), llm, info, VectorBank(info["width"], info["num_slots"]), 0.0,
            num_seqs=num_seqs, on_cpu=device(settings) == "cpu",
        )  # fmt: skip
        engine.vectors, engine.names = {}, tuple(names)
        return engine

    @property
    def marks(self) -> list[bytes]:
        """Return byte strings that occur (unless escaped) in a body that names the model with a vector."""
        return [f"{name}+".encode() for name in self.names]

    def take_over(self) -> None:
        """Let every text of the server pass through `texts`."""
        self._generate = self.llm.generate
        self.llm.generate = self.texts  # type: ignore[method-assign,assignment]

    async def resolved(self, fields: Fields) -> Resolved:
        """Convert fields to edits and readings of this engine. Errors as in `fields.resolved`.

        This method checks everything that does not depend on the prompt, before a stream begins.
        """
        wish = await resolved(self, fields, self.vectors)
        places: list[Edit | Reading] = [*wish.readings, *(wish.steering.edits if wish.steering is not None else ())]
        for place in places:
            self.limits.check_layer(place.layer)
            self.bank.entry(place.vector_id)
        if wish.steering is not None:
            check_change(wish.steering, self.bank.entry, self.dtype)
        return wish

    async def register_named(self, vectors: Sequence[NamedVector]) -> None:
        """Let requests name the given vectors. A vector of an existing name is replaced. Errors as in `register`."""
        check_vectors(vectors, self.bank.width, self.num_layers)
        await self.register([vector.vector for vector in vectors])
        self.vectors.update((vector.name, vector) for vector in vectors)

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
        number = next(call.prompts) if call is not None else 0
        if (call is None or call.wish is None) and not {STEERING, READING} & extra.keys():
            return self._generate(prompt, sampling_params, request_id, **options)
        return self._several(call or Call(), number, prompt, sampling_params, request_id, options)

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
            wish = call.wish or await self.resolved(fields)
            facts = [call.texts.setdefault(number * num_texts + index, TextFacts()) for index in range(num_texts)]
            texts = []
            for index, text in enumerate(facts):
                own = params.clone()
                if params.seed is not None:
                    own.seed = params.seed + index
                name = request_id if num_texts == 1 else f"{index}_{request_id}"
                texts.append(self._text(text, wish, prompt, own, name, options))
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
        except PoolbenchError as error:
            if error.http_status >= 500:
                raise
            raise VLLMValidationError(str(error)) from error

    async def _text(
        self, text: TextFacts, wish: Resolved, prompt: Any, params: "SamplingParams", request_id: str,
        options: dict[str, Any],
    ) -> Outputs:  # fmt: skip
        """Generate one text. Its last output comes after its receipt."""
        request = _request(prompt, params, wish)
        self.limits.check(request, 0, spare=0)
        with self.bank.in_use(request.vector_ids) as slots:
            self._check_change(request)
            async with self._rows.lent() as row:
                num_new, last = 0, None
                steered = self._instructed(request, prompt, params, row, slots)
                async with aclosing(self._vllm_outputs(*steered, request_id, options)) as outputs:
                    async for output in outputs:
                        if request.readings:
                            piece = await self._with_scores(Piece.of(output), request, row, num_new)
                            text.scores += piece.scores
                        num_new += len(output.outputs[0].token_ids)
                        if output.finished:
                            last = output
                            break
                        yield output
                if last is None:
                    raise ReceiptError(f"the engine ended text {request_id} without its last token")
                # Where the server saw a stop string, the engine may be further.
                is_cut = isinstance(last.outputs[0].stop_reason, str)
                text.receipt = await self._proof(request, row, num_new, is_cut=is_cut)
        yield last

    def _instructed(
        self, request: GenerationRequest, prompt: Any, params: "SamplingParams", row: int, slots: dict[str, int]
    ) -> tuple[Any, "SamplingParams"]:
        """Return prompt and parameters with the instructions for the worker, and with the salt of the prefix cache."""
        ours = sampling_params(request)
        params.extra_args = {**(params.extra_args or {}), WIRE_KEY: request.wire(row, slots)}
        params.skip_reading_prefix_cache = ours.skip_reading_prefix_cache or params.skip_reading_prefix_cache
        if request.steering is None:
            return prompt, params
        salt = request.steering.cache_salt(len(request.prompt_ids))
        client_salt = prompt.get("cache_salt")
        return {**prompt, "cache_salt": f"{salt}:{client_salt}" if client_salt else salt}, params

    async def _vllm_outputs(
        self, prompt: Any, params: "SamplingParams", request_id: str, options: dict[str, Any]
    ) -> Outputs:
        try:
            async with aclosing(self._generate(prompt, params, request_id, **options)) as outputs:
                async for output in outputs:
                    yield output
        except asyncio.CancelledError:
            await self.llm.abort(request_id)  # it may have been cancelled while it was being sent: see `_outputs`
            raise


def _request(prompt: Any, params: "SamplingParams", wish: Resolved) -> GenerationRequest:
    """Return what a text asks of steering; raise InputError for a prompt that is not made of tokens."""
    kind = prompt.get("type") if isinstance(prompt, dict) else None
    if kind != "token":
        raise InputError(f"steering and reading along take prompts of text or token ids, not of kind {kind!r}")
    if params.max_tokens is None:
        raise InputError("give max_tokens with steering")
    return GenerationRequest(
        tuple(prompt["prompt_token_ids"]), params.max_tokens, wish.steering, readings=wish.readings
    )
