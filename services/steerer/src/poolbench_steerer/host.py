"""Owns the engine: its event loop and thread, which model is loaded, and its restart after a death.

Handlers are synchronous and called from worker threads, HTTP routes run on another event loop; both reach the
engine through the loop that this host runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from poolbench.config import ModelRef, resolve_model
from poolbench_steerer.config import SteererConfig
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.errors import EngineDiedError
from poolbench_steerer.launch import import_vllm
from poolbench_steerer.norms import measure_norms
from poolbench_steerer.plugin.bank import VectorBank
from poolbench_steerer.selftest import self_test
from poolbench_steerer.tokens import tokens_of

_T = TypeVar("_T")
Job = Callable[[SteeringEngine], Awaitable[_T]]
logger = logging.getLogger(__name__)


class EngineHost:
    """One engine with one model at a time; a job for another model waits, then reloads (tens of seconds)."""

    def __init__(self, config: SteererConfig) -> None:
        self.config = config
        self.state = "idle"  # idle (nothing loaded), loading, ready, dead
        self.num_restarts = 0
        self.checks: dict[str, float] = {}
        self._engine: SteeringEngine | None = None
        self._banks: dict[str, VectorBank] = {}  # by model, so that a reload keeps what was registered
        self._num_jobs = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="steering-engine", daemon=True)
        self._thread.start()
        self._gate = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    def run(self, model: ModelRef, job: Job[_T]) -> _T:
        """Runs a job on the engine from a synchronous caller."""
        return asyncio.run_coroutine_threadsafe(self._run_job(model, job), self._loop).result()

    async def run_async(self, model: ModelRef, job: Job[_T]) -> _T:
        """Runs a job on the engine from any other event loop; cancelling the caller cancels the job."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run_job(model, job), self._loop))

    def start_loading(self) -> None:
        """Begins to load the configured model without waiting for it."""
        model = resolve_model(self.config.model)
        future = asyncio.run_coroutine_threadsafe(self._run_job(model, _nothing), self._loop)
        future.add_done_callback(_log_failure)

    def health(self) -> dict[str, Any]:
        """State of the engine, for ``/health``."""
        engine = self._engine
        report: dict[str, Any] = {"state": self.state, "restarts": self.num_restarts, "jobs": self._num_jobs}
        if engine is not None:
            report |= {
                "state": "dead" if engine.dead else self.state,
                "model": engine.model.id,
                "runner": engine.runner,
                "start_s": round(engine.start_s, 1),
                "self_test": self.checks,
                "vectors": len(engine.bank),
                "vectors_in_use": engine.bank.num_in_use,
                "steered_requests": engine.rows_in_use,
            }
        return report

    def close(self) -> None:
        """Ends the engine and its thread."""
        asyncio.run_coroutine_threadsafe(self._unload(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    async def _run_job(self, model: ModelRef, job: Job[_T]) -> _T:
        # In another thread: vllm takes seconds to import, and what it keeps of failed optional imports would
        # hold on to the frames, and so the engines, of whoever imports it.
        dead_error = await asyncio.to_thread(import_vllm, model, self.config)
        for _ in range(self.config.max_restarts + 1):
            async with self._lease(model) as engine:
                try:
                    return await job(engine)
                except dead_error:
                    # Generation is repeatable, so the whole job runs again on a new engine.
                    logger.warning("the engine of %s died; restarting it", model.id)
        raise EngineDiedError(
            f"the engine of {model.id} died {self.config.max_restarts + 1} times during one call; "
            "see the replica's log (often: not enough memory)"
        )

    @asynccontextmanager
    async def _lease(self, model: ModelRef) -> AsyncIterator[SteeringEngine]:
        # First come, first served: a job that needs a reload holds the gate until the engine is idle.
        async with self._gate:
            engine = await self._loaded(model)
            self._num_jobs += 1
            self._idle.clear()
        try:
            yield engine
        finally:
            self._num_jobs -= 1
            if self._num_jobs == 0:
                self._idle.set()

    async def residual_norms(self, model: ModelRef) -> list[float]:
        """Mean residual norm after every block, measured once; other jobs wait meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._measure_norms(model), self._loop))

    async def _measure_norms(self, model: ModelRef) -> list[float]:
        async with self._gate:
            engine = await self._loaded(model)
            if engine.residual_norms is None:
                await self._idle.wait()
                tokens = tokens_of(model, trust_remote_code=self.config.trust_remote_code)
                engine.residual_norms = await measure_norms(engine, tokens)
            return engine.residual_norms

    async def _loaded(self, model: ModelRef) -> SteeringEngine:
        """The engine with this model; only for who holds the gate."""
        engine = self._engine
        if engine is None or engine.dead or not _serves(engine.model, model):
            await self._idle.wait()
            engine = await self._load(model)
        return engine

    async def _load(self, model: ModelRef) -> SteeringEngine:
        if self._engine is not None and self._engine.dead:
            self.num_restarts += 1
        await self._unload()
        self.state = "loading"
        try:
            engine = await SteeringEngine.start(model, self.config, self._banks.get(_identity(model)))
            self._banks[_identity(model)] = engine.bank
            self._engine = engine
            self.checks = await self_test(engine)
        except BaseException:
            await self._unload()
            raise
        self.state = "ready"
        logger.info("steering engine ready: %s in %.1f s, self-test %s", model.id, engine.start_s, self.checks)
        return engine

    async def _unload(self) -> None:
        engine, self._engine, self.state = self._engine, None, "idle"
        if engine is not None:
            engine.close()
            del engine
            await asyncio.sleep(0)  # its output task ends now
            gc.collect()  # the client is a cycle that holds sockets; at interpreter exit its end would raise


async def _nothing(_engine: SteeringEngine) -> None:
    return None


def _serves(loaded: ModelRef, wanted: ModelRef) -> bool:
    """Whether a request for ``wanted`` can use ``loaded``; one that names no revision takes what is there."""
    same = (loaded.source, loaded.dtype) == (wanted.source, wanted.dtype)
    return same and wanted.revision in (None, loaded.revision)


def _identity(model: ModelRef) -> str:
    return f"{model.source}@{model.revision}:{model.dtype}"


def _log_failure(future: Any) -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.error("the steering engine could not be started: %s", future.exception())
