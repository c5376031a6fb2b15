"""vLLM's OpenAI server on an engine of ours, without its HTTP application."""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Self

from pydantic import ValidationError
from starlette.datastructures import State

from poolbench.contracts.wire import END_OF_STREAM
from poolbench.errors import InputError
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import EngineError, PromptTooLongError
from poolbench_steerer.server.facts import Call
from poolbench_steerer.server.texts import CALL, ServedTexts

#: Parameters that vLLM names when a prompt and its new tokens do not fit into the window of the model.
_OF_THE_WINDOW = ("input_text", "input_tokens", "max_tokens", "max_completion_tokens")


class VllmServer:
    """Answers completions and chats. All methods belong to the event loop of the engine."""

    def __init__(self, state: State) -> None:
        """Take the state that vLLM's application has on an engine."""
        self._state = state

    @classmethod
    async def on(cls, engine: SteeringEngine, tool_parser: str | None) -> Self:
        """Make the server of an engine, whose texts are then steered as their requests say.

        Args:
            tool_parser: Name of vLLM's parser for the model's calls of tools. Without one, a model cannot choose
                whether it calls a tool.
        """
        initialise, arguments = await asyncio.to_thread(_of_vllm, engine, tool_parser)
        state = State()
        await initialise(engine.llm, state, arguments, await engine.llm.get_supported_tasks())
        ServedTexts(engine, {})
        return cls(state)

    async def whole(self, call: Call, values: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Of its nulls, it keeps those of the OpenAI API.

        Raises:
            PoolbenchError: vLLM refuses the request, or a text fails.
        """
        answer = await self._answer(call, values)
        whole: dict[str, Any] = await asyncio.to_thread(answer.model_dump, exclude_none=True)
        for choice in whole["choices"]:
            choice.setdefault("logprobs", None)
            if "message" in choice:
                choice["message"].setdefault("content", None)
        return whole

    async def chunks(self, call: Call, values: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a stream. Errors as in `whole`."""
        async with aclosing(await self._answer(call, values)) as events:
            async for event in events:
                data = event.removeprefix("data: ").strip()
                if data == END_OF_STREAM:
                    return
                chunk = json.loads(data)
                if "error" in chunk:
                    raise call.error or _refused(chunk["error"]["code"], chunk["error"]["message"])
                yield chunk

    async def _answer(self, call: Call, values: dict[str, Any]) -> Any:
        """Return what vLLM answers: a whole answer, or the iterator over the events of a stream."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        CALL.set(call)
        try:
            if "messages" in values:
                chat = self._state.openai_serving_chat
                answer = await chat.create_chat_completion(ChatCompletionRequest.model_validate(values))
            else:
                completions = self._state.openai_serving_completion
                answer = await completions.create_completion(CompletionRequest.model_validate(values))
        except Exception as error:
            ours = call.error or _ours(error)
            if ours is error:
                raise
            raise ours from error
        if (failure := getattr(answer, "error", None)) is not None:
            raise call.error or _refused(failure.code, failure.message)
        return answer


def _of_vllm(engine: SteeringEngine, tool_parser: str | None) -> tuple[Callable[..., Awaitable[None]], Namespace]:
    """Return vLLM's function that makes the state of its application, and the arguments of the command line for it."""
    try:
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:  # vLLM 0.25
        from vllm.entrypoints.openai.api_server import init_app_state
        from vllm.entrypoints.openai.cli_args import make_arg_parser  # type: ignore[no-redef]
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = [f"--model={engine.model.source}", f"--served-model-name={engine.model.id}", "--disable-log-stats"]
    if tool_parser is not None:
        words += ["--enable-auto-tool-choice", f"--tool-call-parser={tool_parser}"]
    return init_app_state, make_arg_parser(FlexibleArgumentParser()).parse_args(words)


def _ours(error: Exception) -> Exception:
    """Convert an error that vLLM's server answers with a status below 500. Other errors are unchanged."""
    if getattr(error, "parameter", None) in _OF_THE_WINDOW:
        return PromptTooLongError(f"prompt and new tokens exceed the window of the model: {error}")
    if isinstance(error, ValidationError):
        issue = error.errors(include_url=False, include_input=False)[0]
        return InputError(f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}")
    kinds = {base.__name__ for one in (error, error.__cause__, error.__context__) for base in type(one).__mro__}
    if "ChatTemplateResolutionError" in kinds:
        return InputError("this model has no chat template; send a prompt to /v1/completions")
    if "TemplateError" in kinds:
        return InputError(f"the model's chat template refuses these messages: {error}")
    if isinstance(error, (ValueError, TypeError, OverflowError, NotImplementedError)):
        return InputError(f"the engine refuses the request: {error}")
    return error


def _refused(status: int, message: str) -> Exception:
    kind = InputError if status < 500 else EngineError
    return kind(f"the engine refuses the request: {message}")
