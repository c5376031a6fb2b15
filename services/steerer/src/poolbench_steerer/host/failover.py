"""What the death of an engine interrupts is noticed, and done again on the next one: generation is repeatable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from poolbench.config import ModelRef
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.border import as_ours
from poolbench_steerer.engine.launch import import_vllm
from poolbench_steerer.errors import EngineDiedError, EngineError

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
_ALIVE_INTERVAL_S = 1.0


async def retry_on_engine_death(
    model: ModelRef, config: SteererSettings, attempt: Callable[[], Awaitable[_T]], is_dead: Callable[[], bool]
) -> _T:
    """Makes the attempt again after every death of the engine, on a new one.

    Args:
        attempt: Takes whatever engine there is, or starts one.
        is_dead: Whether the engine that the attempt used has died.

    Raises:
        EngineDiedError: It died more often than ``max_restarts``.
        EngineError, InputError: In the place of an error that is vLLM's own, or another package's.
    """
    # In another thread: vllm takes seconds to import, and what it keeps of failed optional imports would
    # hold on to the frames, and so the engines, of its importers.
    dead_error = await asyncio.to_thread(import_vllm, model, config)
    for _ in range(config.max_restarts + 1):
        try:
            return await attempt()
        except Exception as error:
            # What a death looks like depends on what was under way; an engine may die in its self-test too.
            if not (isinstance(error, dead_error) or is_dead()):
                _raise_as_ours(error)
            logger.warning("the engine of %s died (%s); restarting it", model.id, error)
    raise EngineDiedError(
        f"the engine of {model.id} died {config.max_restarts + 1} times during one call; "
        "see the replica's log (often: not enough memory)"
    )


def _raise_as_ours(error: Exception) -> NoReturn:
    """Raise the error that may leave the replica; the trace of a failure that is not ours stays in the log."""
    ours = as_ours(error)
    if ours is error:
        raise error
    if isinstance(ours, EngineError):
        logger.error("the engine failed", exc_info=error)
    raise ours from error


async def while_alive(engine: SteeringEngine, work: Awaitable[_T]) -> _T:
    """The result of ``work``, which is given up when the engine has died: vLLM leaves calls to a dead worker open.

    Raises:
        EngineDiedError: The engine died, and ``work`` did not notice.
    """
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
