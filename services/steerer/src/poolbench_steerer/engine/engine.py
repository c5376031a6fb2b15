"""The engine: vLLM with the steering worker, all requests in flight at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from math import isfinite
from operator import add
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from poolbench.config import ModelRef
from poolbench.errors import InputError, ReceiptError
from poolbench.settings import SteererSettings
from poolbench.telemetry.catalog import BATCH_SIZE, TOKENS
from poolbench.telemetry.ids import engine_request_id
from poolbench_steerer.concurrency import OnDone, run_all
from poolbench_steerer.engine.assembly import Assembly, tokenizer_of
from poolbench_steerer.engine.launch import device, launch
from poolbench_steerer.engine.requests import (
    Generation,
    GenerationRequest,
    Limits,
    Piece,
    Pooled,
    PooledVector,
    check_counts,
    check_logprobs,
    sampling_params,
)
from poolbench_steerer.engine.rows import Rows, TaskPlaces, num_task_places
from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.bank import Entry, VectorBank, check_change
from poolbench_steerer.plugin.receipts import Receipt, check

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


#: Places of texts of tasks on a CPU while clients wait for texts.
_FEW_PLACES = 8
#: Steps that vLLM schedules before it learns which texts ended. It is one today, and none without asynchronous
#: scheduling.
_STEPS_AHEAD = 2


class SteeringEngine:
    """AsyncLLM with the steering worker. All methods belong to the event loop that started it."""

    def __init__(
        self,
        model: ModelRef,
        llm: AsyncLLM,
        info: dict[str, Any],
        bank: VectorBank,
        start_s: float,
        *,
        num_seqs: int,
        on_cpu: bool,
    ) -> None:
        self.model = model
        self.llm = llm
        self.vllm_generate = llm.generate  # vLLM's own, also where a server puts another in its place
        self.bank = bank
        self.limits = Limits(
            model.id, llm.model_config.max_model_len, info["num_layers"], info["num_edits"], info["state_bytes"]
        )
        self.dtype = str(llm.model_config.dtype).removeprefix("torch.")
        self.runner: str = info["runner"]
        self.eager: bool = info["eager"]
        self.start_s = start_s
        self.server: asyncio.Task[Any] | None = None  # makes what answers the OpenAI API, from the first request on
        self.num_repeated = 0  # positions computed again after preemptions
        self._rows = Rows(llm, info["num_rows"])
        num_places = num_task_places(info["num_rows"] - 1, num_seqs)
        self._places = TaskPlaces(num_places, _FEW_PLACES if on_cpu else num_places)
        self._registering = asyncio.Lock()

    @classmethod
    async def start(cls, model: ModelRef, config: SteererSettings, bank: VectorBank | None = None) -> Self:
        """Start an engine. `bank` is the bank of an earlier engine of this model, whose vectors are uploaded again."""
        began = time.monotonic()
        llm = launch(model, config)
        start_s = time.monotonic() - began
        info = (await llm.collective_rpc("steering_info"))[0]
        bank = bank or VectorBank(info["width"], info["num_slots"])
        engine = cls(model, llm, info, bank, start_s, num_seqs=config.max_num_seqs, on_cpu=device(config) == "cpu")
        await engine._upload(bank.resident)
        return engine

    def close(self) -> None:
        """End the engine process."""
        self.llm.shutdown()

    @property
    def dead(self) -> bool:
        """Return whether the engine process is gone."""
        return bool(self.llm.errored)

    @property
    def num_layers(self) -> int:
        """Return blocks of the model."""
        return self.limits.num_layers

    @property
    def rows_in_use(self) -> int:
        """Return requests for texts inside the engine."""
        return self._rows.in_use

    async def register(self, vectors: Sequence[np.ndarray], *, confidential: bool = False) -> list[str]:
        """Put vectors into the device bank and return their ids. Known vectors are not copied again."""
        async with self._registering:
            ids, added = self.bank.register(vectors, confidential=confidential)
            # Without the shield, a cancelled upload leaves a taken slot with another vector's numbers.
            await asyncio.shield(self._upload(added))
        return ids

    async def generate(
        self, requests: Sequence[GenerationRequest], on_done: OnDone | None = None, *, confidential: bool = False
    ) -> list[Generation]:
        """Generate all texts, as many at once as the engine takes.

        Args:
            confidential: Whether steering with vectors that were registered as confidential is allowed.

        Raises:
            PromptTooLongError, LayerError, StrengthError, InputError, UnknownVectorError: Before anything is generated.
            ReceiptError: Steering was not applied at exactly the expected positions.
            NoEffectError: Steering was applied, but is too small to change the states.
            StateOverflowError: States or log-probabilities are not finite.
        """
        for index, request in enumerate(requests):
            self.limits.check(request, index)
        ids = [vector_id for request in requests for vector_id in request.vector_ids]
        with self.bank.in_use(ids, confidential=confidential) as slots:
            for request in requests:
                self._check_change(request)
            BATCH_SIZE.observe(len(requests), service="steerer")
            return await run_all([self._whole(request, slots) for request in requests], on_done)

    async def outputs(
        self,
        request: GenerationRequest,
        params: SamplingParams,
        slots: dict[str, int],
        *,
        prompt: Any = None,
        request_id: str = "",
        **options: Any,
    ) -> AsyncGenerator[tuple[RequestOutput, Piece], None]:
        """Generate one text. Yield the outputs of vLLM, each with its piece of the text. Errors as in `generate`.

        The last output comes after the receipt of the text, which its piece has. Closing the iterator before its end
        aborts the request.

        Args:
            params: Sampling parameters for vLLM, to which the instructions for the worker are added.
            slots: Bank slots of the request's vectors, which are in use until the iterator ends.
            prompt: Prompt for vLLM, if it says more than the token ids of the request.
            request_id: Id of the request in vLLM. "" stands for a new one.
            options: Other arguments of vLLM's `generate`.
        """
        self.limits.check(request, 0, spare=0)
        self._check_change(request)
        assembly = Assembly(self.llm, request.stops, params)
        async with AsyncExitStack() as place:
            await place.enter_async_context(self._places.place(of_task=request.of_task))
            async with self._rows.lent(request.num_kept * self.limits.state_bytes) as row:
                instructed = self._instructed(request, params, row, slots, prompt)
                last = None
                async with aclosing(self._outputs(*instructed, request_id, **options)) as outputs:
                    async for output in outputs:
                        piece = Piece.of(output)
                        if request.readings:
                            piece = await self._with_scores(piece, request, row, len(assembly.token_ids))
                        for logprobs in (*(piece.prompt_logprobs or ()), *(piece.logprobs or ())):
                            check_logprobs(logprobs.values() if logprobs else (), self.dtype)
                        taken = await assembly.taken(output, piece)
                        if output.finished:
                            last = taken
                        elif not assembly.joins:
                            yield taken
                        if taken[1].stopped is not None:
                            break
                await place.aclose()  # the next text of a task begins
                if last is None:
                    raise ReceiptError("the engine ended a text without its last token; the text is discarded")
                output, piece = last
                # Stop strings are looked for in this process, as are the ends by what is read.
                is_cut = isinstance(output.outputs[0].stop_reason, str)
                receipt = await self._proof(request, row, len(assembly.token_ids), is_cut=is_cut)
                pooled = await self._pooled(request, row, assembly.token_ids)
        yield output, replace(piece, receipt=receipt, pooled=pooled)

    async def prompt_logprobs(self, token_ids: Sequence[int], *, of_task: bool = False) -> list[float]:
        """Return the unsteered log-probability of each token but the first, given the preceding tokens."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        async with self._places.place(of_task=of_task):
            *_, last = [output async for output in self._outputs(_prompt(token_ids), params)]
        pairs = zip(token_ids[1:], (last.prompt_logprobs or [])[1:], strict=True)
        logprobs = [position[token].logprob for token, position in pairs if position is not None]
        check_logprobs(logprobs, self.dtype)
        return logprobs

    async def head_logits(self, stream: np.ndarray) -> np.ndarray:
        """Return next-token logits of a residual stream [D] after the last block, float64 (for the self-test)."""
        data = stream.astype("<f4").tobytes()
        return np.array((await self.llm.collective_rpc("steering_head", args=(data,)))[0])

    async def watched_streams(self) -> np.ndarray:
        """Return the streams that edits met after the last block, of the latest batch's first tokens, [W, D]."""
        return np.array((await self.llm.collective_rpc("steering_watched"))[0])

    async def _whole(self, request: GenerationRequest, slots: dict[str, int]) -> Generation:
        *_, (_, text) = [output async for output in self.outputs(request, sampling_params(request), slots)]
        return Generation(
            text.token_ids,
            text.finish_reason or "",
            text.receipt,
            text.logprobs[0] if text.logprobs else None,
            text.scores,
            text.stopped,
            text.pooled,
        )

    def _instructed(
        self, request: GenerationRequest, params: SamplingParams, row: int, slots: dict[str, int], prompt: Any
    ) -> tuple[Any, SamplingParams]:
        """Return prompt and parameters with the instructions for the worker, and with the salt of the prefix cache."""
        params.extra_args = {**(params.extra_args or {}), WIRE_KEY: request.wire(row, slots)}
        if request.computes_prompt:
            params.skip_reading_prefix_cache = True
        prompt = _prompt(request.prompt_ids) if prompt is None else prompt
        if request.steering is None:
            return prompt, params
        salt, own_salt = request.steering.cache_salt(len(request.prompt_ids)), prompt.get("cache_salt")
        return {**prompt, "cache_salt": f"{salt}:{own_salt}" if own_salt else salt}, params

    async def _proof(self, request: GenerationRequest, row: int, num_new: int, *, is_cut: bool) -> Receipt | None:
        """Return the receipt of a text at its end; None for an unsteered one. Errors as in `generate`.

        Args:
            row: The row that the text still holds.
            num_new: Its tokens.
            is_cut: Whether the engine learned of the end only from this process, after any number of further steps.
        """
        num_prompt = len(request.prompt_ids)
        count = await self._rows.count(row, num_prompt + num_new - 1)
        check_counts(count, self.dtype)
        if request.steering is None:
            return None
        self.num_repeated += count.repeated
        if count.beyond > _STEPS_AHEAD and not is_cut:
            raise ReceiptError(
                f"steering was not applied as asked: {count.beyond} positions behind the end of the text were steered, "
                f"and vLLM schedules at most {_STEPS_AHEAD} steps ahead; the text is discarded"
            )
        return check(request.steering, count, num_prompt, count.end - num_prompt + 1)

    async def _pooled(self, request: GenerationRequest, row: int, new_ids: Sequence[int]) -> Pooled | None:
        """Return the pooled vectors of a text at its end; None for a text that is not pooled."""
        if request.pooling is None:
            return None
        computed = [*request.prompt_ids, *new_ids[:-1]]
        special = {*(await tokenizer_of(self.llm)).all_special_ids}
        text = {
            "row": row,
            "num_prompt": len(request.prompt_ids),
            "end": len(computed),
            "special": [position for position, token in enumerate(computed) if token in special],
            "strategies": request.pooling.strategies,
        }
        parts = await self._rows.pooled(text)
        if parts is None:
            raise ReceiptError("the states of a text were not kept at each position; the text is discarded")
        return Pooled(*(_vectors(request.pooling.strategies, part) for part in parts))

    async def _with_scores(self, piece: Piece, request: GenerationRequest, row: int, num_before: int) -> Piece:
        """Return a piece with the scores of its tokens; `num_before` tokens came before it."""
        begin = len(request.prompt_ids) - 1 + num_before
        first = begin if num_before else request.first_read
        scores = await self._rows.scores(row, first, begin + len(piece.token_ids), len(request.readings))
        if not all(isfinite(value) for values in scores for value in values):
            check_counts(await self._rows.count(row, begin), self.dtype)
            raise ReceiptError(f"a direction was not read at each position from {first} on; the text is discarded")
        offsets = [reading.offset for reading in request.readings]
        shifted = [tuple(map(add, values, offsets)) for values in scores]
        of_prompt = (None, *shifted[: begin - first]) if request.read_prompt and not num_before else ()
        return replace(piece, scores=tuple(shifted[begin - first :]), prompt_scores=of_prompt)

    async def _outputs(
        self, prompt: Any, params: SamplingParams, request_id: str = "", **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield vLLM's outputs for one request; closing the iterator before its end aborts the request."""
        request_id = request_id or engine_request_id()
        num_new = 0
        try:
            async with aclosing(self.vllm_generate(prompt, params, request_id, **options)) as outputs:
                async for output in outputs:
                    num_new += len(output.outputs[0].token_ids)
                    yield output
        except asyncio.CancelledError:
            # vLLM aborts what it waits for; a request cancelled while it is sent would go on, in a row given back.
            await self.llm.abort(request_id)
            raise
        finally:
            if num_new:
                TOKENS.add(len(prompt["prompt_token_ids"]), service="steerer", tokens="read")
                TOKENS.add(num_new, service="steerer", tokens="generated")
        if num_new == 0:
            raise InputError("the engine ended a request without a token")

    def _check_change(self, request: GenerationRequest) -> None:
        """Refuse a change that is too large; its vectors are in use, so the caller may use them."""
        if request.steering is not None:
            check_change(request.steering, lambda key: self.bank.entry(key, confidential=True), self.dtype)

    async def _upload(self, entries: Sequence[Entry]) -> None:
        if entries:
            data = np.stack([entry.vector for entry in entries]).astype("<f4").tobytes()
            await self.llm.collective_rpc("steering_upload", args=([entry.slot for entry in entries], data))


def _vectors(strategies: Sequence[str], part: Sequence[tuple[bytes | None, str | None]]) -> dict[str, PooledVector]:
    return {
        strategy: PooledVector(None if data is None else np.frombuffer(data, dtype=np.float32), reason)
        for strategy, (data, reason) in zip(strategies, part, strict=True)
    }


def _prompt(token_ids: Sequence[int]) -> Any:
    from vllm.inputs import tokens_input

    return tokens_input(list(token_ids))
