"""The loaded engine: one model at a time, lent to any number of jobs, changed when none is running."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from poolbench.config import ModelRef, require_unchanged, resolve_model
from poolbench.errors import InputError, PoolbenchError
from poolbench.settings import SteererSettings
from poolbench.statuses import EngineState
from poolbench_steerer.concurrency import uncancelled
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.launch import import_vllm, with_room
from poolbench_steerer.engine.norms import TextNorms, measure_texts
from poolbench_steerer.engine.selftest import self_test
from poolbench_steerer.errors import EngineDiedError, EngineError
from poolbench_steerer.plugin.bank import VectorBank
from poolbench_steerer.tokens import loaded_tokens

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
_ALIVE_INTERVAL_S = 1.0

Job = Callable[[SteeringEngine], Awaitable[_T]]


async def retry_on_engine_death(
    model: ModelRef, config: SteererSettings, attempt: Callable[[], Awaitable[_T]], is_dead: Callable[[], bool]
) -> _T:
    """Run `attempt`, and repeat it on a new engine after every death of the engine.

    Args:
        attempt: Function that uses the current engine, or starts an engine.
        is_dead: Function that returns whether the engine of the attempt has died.

    Raises:
        EngineDiedError: The engine died more often than `max_restarts`.
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
    """Return the result of `work`. Raise EngineDiedError if the engine dies, since vLLM calls would then hang."""
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
    """Convert an error of another package to InputError or EngineError. Our errors and built-in errors are unchanged.

    An exception is pickled in a Ray Serve replica and loaded in the HTTP proxy of all services. Loading the error of
    another package would import that package there, which takes seconds and hundreds of megabytes.
    """
    kind = type(error)
    if isinstance(error, PoolbenchError) or kind.__module__ == "builtins":
        return error
    if any(base.__name__ in _REFUSALS for base in kind.__mro__):
        return InputError(f"the engine refuses the request: {error}")
    reason = error.__cause__ or error  # vLLM's EngineGenerateError has no message of its own
    return EngineError(f"the engine failed at this request: {type(reason).__name__}: {reason}")


class EngineKeeper:
    """One engine with one model, for one event loop. A job for another model waits and then reloads.

    Attributes:
        engine: The loaded engine, alive or dead.
        state: State of the engine, which is `failed` if the configured model could not be loaded.
        checks: Results of the self-test of the latest engine.
    """

    def __init__(self, config: SteererSettings) -> None:
        self.engine: SteeringEngine | None = None
        self.state = EngineState.IDLE
        self.failure = ""
        self.checks: dict[str, float] = {}
        self._norms: list[TextNorms] | None = None  # of the latest engine, measured when first asked for
        self.num_restarts = 0
        self.num_jobs = 0
        self._config = config
        self._banks: dict[str, VectorBank] = {}  # by model, so that a reload keeps what was registered
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    def bank_of(self, model: ModelRef) -> VectorBank | None:
        """Return the bank of a model that was loaded before."""
        return self._banks.get(_identity(model))

    async def run(self, model: ModelRef, job: Job[_T]) -> _T:
        """Run a job on an engine with this model. If the engine dies, run the job again on a new engine."""

        async def attempt() -> _T:
            async with self._lease(model) as engine:
                return await while_alive(engine, job(engine))

        return await retry_on_engine_death(model, self._config, attempt, self._is_dead)

    async def norms(self, model: ModelRef) -> list[TextNorms]:
        """Return residual norms of the calibration texts. Norms are measured once, while other jobs wait."""
        return await retry_on_engine_death(model, self._config, lambda: self._measure_norms(model), self._is_dead)

    async def unload(self) -> None:
        """End the engine, if there is one."""
        engine, self.engine, self.state = self.engine, None, EngineState.IDLE
        if engine is not None:
            engine.close()
            del engine
            await asyncio.sleep(0)  # its output task ends now
            gc.collect()  # the client is a cycle that holds sockets; at interpreter exit its end would raise

    async def leave(self) -> None:
        """End the engine unless a job uses or awaits it."""
        if self._gate.locked() or self.num_jobs:
            return
        async with self._gate:
            if not self.num_jobs:
                await self.unload()

    @asynccontextmanager
    async def _lease(self, model: ModelRef) -> AsyncIterator[SteeringEngine]:
        # First come, first served: a job that needs a reload holds the gate until the engine is idle.
        async with self._gate:
            engine = await uncancelled(self._loaded(model))
            self.num_jobs += 1
            self._idle.clear()
        try:
            yield engine
        finally:
            self.num_jobs -= 1
            if self.num_jobs == 0:
                self._idle.set()

    async def _measure_norms(self, model: ModelRef) -> list[TextNorms]:
        async with self._gate:
            engine = await uncancelled(self._loaded(model))
            if self._norms is None:
                await self._idle.wait()
                tokens = await loaded_tokens(model, trust_remote_code=self._config.trust_remote_code)
                self._norms = await while_alive(engine, measure_texts(engine, tokens))
            return self._norms

    async def _loaded(self, model: ModelRef) -> SteeringEngine:
        """Return the engine with this model; the caller must hold the gate."""
        engine = self.engine
        if engine is not None and not engine.dead:
            loaded = engine.model
            same = (loaded.source, loaded.dtype) == (model.source, model.dtype)
            if same and model.revision in (None, loaded.revision):  # without a revision any is accepted
                return engine
        await self._idle.wait()
        return await self._load(model)

    async def _load(self, model: ModelRef) -> SteeringEngine:
        await asyncio.to_thread(require_unchanged, model)  # since its revision was taken
        if self._is_dead():
            self.num_restarts += 1
        elif self.engine is not None:  # a model that does not exist must not end the engine that others use
            await loaded_tokens(model, trust_remote_code=self._config.trust_remote_code)
        await self.unload()
        self.state = EngineState.LOADING
        try:
            config = await asyncio.to_thread(with_room, model, self._config)
            engine = await SteeringEngine.start(model, config, self.bank_of(model))
            self._banks[_identity(model)] = engine.bank
            self.engine, self._norms = engine, None
            await asyncio.to_thread(require_unchanged, model)  # while the engine read it
            self.checks = await while_alive(engine, self_test(engine))
        except BaseException as error:
            await self.unload()
            # Another model that could not be loaded on request says nothing about this service.
            if model.id == (await asyncio.to_thread(resolve_model, self._config.model)).id:
                self.state, self.failure = EngineState.FAILED, str(error) or type(error).__name__
            raise
        self.state = EngineState.READY
        logger.info("steering engine ready: %s in %.1f s, self-test %s", model.id, engine.start_s, self.checks)
        return engine

    def _is_dead(self) -> bool:
        return self.engine is not None and self.engine.dead


def _identity(model: ModelRef) -> str:
    return f"{model.source}@{model.revision}:{model.dtype}"
