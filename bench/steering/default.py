"""vLLM as its users start it, with the sizes of an engine of ours: the base of every ratio."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from poolbench.config import ModelRef
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.launch import device, engine_arguments, steering_arguments
from poolbench_steerer.engine.requests import sampling_params

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class Text(NamedTuple):
    """The tokens of a text."""

    token_ids: Sequence[int]


class DefaultEngine:
    """An engine with vLLM's own worker and scheduling. It belongs to the event loop that started it."""

    def __init__(self, llm: "AsyncLLM") -> None:
        self.llm = llm

    @classmethod
    def start(cls, model: ModelRef, config: SteererSettings) -> "DefaultEngine":
        """Start an engine with the arguments of ours, except those that steering needs."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        device_type = device(config)
        arguments = engine_arguments(model, config, device_type)
        for name in steering_arguments(config, device_type):
            del arguments[name]
        return cls(AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)))

    async def generate(self, batch: Sequence[GenerationRequest]) -> list[Text]:
        """Generate all texts at once, unsteered."""
        return await asyncio.gather(*(self._text(request, str(index)) for index, request in enumerate(batch)))

    async def _text(self, request: GenerationRequest, request_id: str) -> Text:
        from vllm.inputs import tokens_input

        prompt: Any = tokens_input(list(request.prompt_ids))
        *_, last = [output async for output in self.llm.generate(prompt, sampling_params(request), request_id)]
        return Text(last.outputs[0].token_ids)
