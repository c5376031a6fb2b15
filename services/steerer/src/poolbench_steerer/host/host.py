"""The engine for the service's threads and routes: jobs to run on it, and its state; and the event loop it runs on."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from poolbench.config import ModelRef, resolve_model
from poolbench.settings import SteererSettings
from poolbench.statuses import EngineState, ServiceState
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.engine.norms import median_norms, norms_report
from poolbench_steerer.engine.workers import measure_all_reduce
from poolbench_steerer.host.keeper import EngineKeeper, Job
from poolbench_steerer.plugin.bank import VectorBank
from poolbench_steerer.tokens import Tokens, loaded_tokens

_T = TypeVar("_T")
Emit = Callable[[Any], None]
_CHECK_INTERVAL_S = 1.0
_END = object()


class LoopThread:
    """Run coroutines on an event loop in a separate thread. If a caller stops waiting, its coroutine is cancelled."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_forever()

    @property
    def alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, _T], check: Callable[[], None] | None = None) -> _T:
        """Run `work` for a synchronous caller; an error of `check`, called every second or two, cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while check is not None:
                try:
                    return future.result(timeout=_CHECK_INTERVAL_S)
                except TimeoutError:
                    if future.done():  # the work's own TimeoutError
                        raise
                    check()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` for a caller on any other event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stream(self, start: Callable[[Emit], Coroutine[Any, Any, None]]) -> AsyncGenerator[Any, None]:
        """Yield what the work that `start` makes emits, for a caller on any other event loop."""
        loop, emitted = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def emit(item: Any) -> None:
            loop.call_soon_threadsafe(emitted.put_nowait, item)

        future = asyncio.run_coroutine_threadsafe(start(emit), self._loop)
        future.add_done_callback(lambda _: emit(_END))
        try:
            while (item := await emitted.get()) is not _END:
                yield item
            future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


StreamJob = Callable[[SteeringEngine, Emit], Awaitable[None]]


class EngineHost:
    """One engine with one model at a time. A job for another model waits and then reloads (tens of seconds)."""

    def __init__(self, config: SteererSettings) -> None:
        self.config = config
        self.keeper = EngineKeeper(config)
        self._loop = LoopThread("steering-engine")

    def run(self, model: ModelRef, job: Job[_T], check: Callable[[], None] | None = None) -> _T:
        """Run a job on the engine for a synchronous caller; an error of `check`, called once a second, cancels it."""
        return self._loop.run(self.keeper.run(model, job), check)

    async def run_async(self, model: ModelRef, job: Job[_T]) -> _T:
        """Run a job on the engine from any other event loop. If the caller is cancelled, the job is cancelled."""
        return await self._loop.run_async(self.keeper.run(model, job))

    def stream(self, model: ModelRef, job: StreamJob) -> AsyncGenerator[Any, None]:
        """Yield the items that a job emits, for any other event loop. Closing the iterator cancels the job.

        If the engine dies, the job is called again with a new engine, and must skip items that it has already emitted.
        """
        return self._loop.stream(lambda emit: self.keeper.run(model, lambda engine: job(engine, emit)))

    async def look(self, model: ModelRef, view: Callable[[VectorBank | None], _T]) -> _T:
        """Return `view` of the bank of a model, or of None if the model never had a bank. No model is loaded."""

        async def on_loop() -> _T:
            return view(self.keeper.bank_of(model))

        return await self._loop.run_async(on_loop())

    async def residual_norms(self, model: ModelRef) -> list[float]:
        """Return the median residual norm after every block. Norms are measured once, while other jobs wait."""
        return median_norms(await self._loop.run_async(self.keeper.norms(model)))

    async def examine(self, model: ModelRef) -> dict[str, Any]:
        """Return the results of the self-test, the time of a sum over workers, and norms of the calibration texts."""
        texts = await self._loop.run_async(self.keeper.norms(model))
        all_reduce = await self.run_async(model, measure_all_reduce)
        checks = {"self_test": self.keeper.checks, "all_reduce": all_reduce}
        return {"model": model.id, "dtype": model.dtype, **checks, **norms_report(texts)}

    async def tokens(self, model: ModelRef) -> Tokens:
        """Return the tokenizer of a model."""
        return await loaded_tokens(model, trust_remote_code=self.config.trust_remote_code)

    def load(self) -> None:
        """Load the configured model. Raise ModelError if this fails, or ReceiptError if the self-test fails."""

        async def nothing(_engine: SteeringEngine) -> None:
            return None

        self.run(resolve_model(self.config.model), nothing)

    def health(self) -> dict[str, Any]:
        """Return state of the engine, for `/health`."""
        keeper, engine = self.keeper, self.keeper.engine
        state = EngineState.DEAD if engine is not None and engine.dead else keeper.state
        report: dict[str, Any] = {"state": state, "restarts": keeper.num_restarts, "jobs": keeper.num_jobs}
        report["ready"] = state == EngineState.READY
        if state == EngineState.FAILED:
            report |= {"status": ServiceState.UNAVAILABLE, "reason": keeper.failure}
        if engine is not None:
            report |= {
                "model": engine.model.id,
                "num_layers": engine.num_layers,
                "width": engine.bank.width,
                "runner": engine.runner,
                "start_s": round(engine.start_s, 1),
                "self_test": keeper.checks,
                "vectors": len(engine.bank),
                "vectors_in_use": engine.bank.num_in_use,
                "steered_requests": engine.rows_in_use,
            }
        return report

    def in_use(self) -> dict[str, int]:
        """Return the numbers of jobs, rows, vectors and engine requests in use, which are 0 if no job is running."""
        engine = self.keeper.engine
        return {
            "jobs": self.keeper.num_jobs,
            "rows": engine.rows_in_use if engine is not None else 0,
            "vectors": engine.bank.num_in_use if engine is not None else 0,
            "engine_requests": engine.llm.get_num_unfinished_requests() if engine is not None else 0,
        }

    def leave(self) -> None:
        """End the engine if no job uses it. The next job starts a new engine."""
        self._loop.run(self.keeper.leave())

    def close(self) -> None:
        """End the engine and its thread. A second call does nothing."""
        if self._loop.alive:
            self._loop.run(self.keeper.unload())
            self._loop.stop()
