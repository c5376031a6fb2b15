"""Notice the death of an engine, and repeat what it interrupted on the next one: generation is repeatable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from poolbench.config import ModelRef
from poolbench.errors import InputError, PoolbenchError
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.launch import import_vllm
from poolbench_steerer.errors import EngineDiedError, EngineError

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
_ALIVE_INTERVAL_S = 1.0


async def retry_on_engine_death(
    model: ModelRef, config: SteererSettings, attempt: Callable[[], Awaitable[_T]], is_dead: Callable[[], bool]
) -> _T:
    """Make the attempt again after every death of the engine, on a new one.

    Args:
        attempt: Uses the current engine, or starts one.
        is_dead: Whether the engine that the attempt used has died.

    Raises:
        EngineDiedError: It died more often than `max_restarts`.
        EngineError, InputError: In place of an error of vLLM or another package.
    """
    # In another thread: vllm takes seconds to import, and the errors of its failed optional imports keep
    # the frames, and so the engines, of its importers alive.
    dead_error = await asyncio.to_thread(import_vllm, model, config)
    for _ in range(config.max_restarts + 1):
        try:
            return await attempt()
        except Exception as error:
            # The error of a death depends on what was running; an engine may die in its self-test too.
            if not (isinstance(error, dead_error) or is_dead()):
                ours = as_ours(error)
                if ours is error:
                    raise error
                if isinstance(ours, EngineError):  # the failure of another package: its traceback stays here
                    logger.error("the engine failed", exc_info=error)
                raise ours from error
            logger.warning("the engine of %s died (%s); restarting it", model.id, error)
    raise EngineDiedError(
        f"the engine of {model.id} died {config.max_restarts + 1} times during one call; "
        "see the replica's log (often: not enough memory)"
    )


async def while_alive(engine: SteeringEngine, work: Awaitable[_T]) -> _T:
    """Return the result of `work`; raise EngineDiedError after a death, as vLLM leaves calls to dead workers open."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            was_dead = engine.dead
            await asyncio.wait([task], timeout=_ALIVE_INTERVAL_S)
            if was_dead and not task.done():
                raise EngineDiedError(f"the engine of {engine.model.id} died")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


#: vLLM's errors for requests that it refuses: the base class of 0.32, and the one class of 0.25.
_REFUSALS = ("VLLMClientError", "VLLMValidationError")


def as_ours(error: Exception) -> Exception:
    """Return the error that leaves the engine's process for `error`: our errors and Python's own are not changed.

    An exception is pickled where it leaves a replica of Ray Serve, and loaded in the HTTP proxy of all services. There
    the class of another package's error imports that package, which takes seconds and hundreds of megabytes.
    """
    kind = type(error)
    if isinstance(error, PoolbenchError) or kind.__module__ == "builtins":
        return error
    if any(base.__name__ in _REFUSALS for base in kind.__mro__):
        return InputError(f"the engine refuses the request: {error}")
    reason = error.__cause__ or error  # vLLM's EngineGenerateError has no message of its own
    return EngineError(f"the engine failed at this request: {type(reason).__name__}: {reason}")
