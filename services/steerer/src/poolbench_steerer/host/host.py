"""The engine as the service's threads and routes see it: jobs to run on it, and its state."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from poolbench.config import ModelRef, resolve_model
from poolbench.settings import SteererSettings
from poolbench.statuses import EngineState, ServiceState
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.host.keeper import EngineKeeper, Job
from poolbench_steerer.host.loop import Emit, LoopThread
from poolbench_steerer.plugin.bank import VectorBank

_T = TypeVar("_T")
StreamJob = Callable[[SteeringEngine, Emit], Awaitable[None]]


class EngineHost:
    """One engine with one model at a time; a job for another model waits, then reloads (tens of seconds)."""

    def __init__(self, config: SteererSettings) -> None:
        self.config = config
        self.keeper = EngineKeeper(config)
        self._loop = LoopThread("steering-engine")

    def run(self, model: ModelRef, job: Job[_T], check: Callable[[], None] | None = None) -> _T:
        """Runs a job on the engine from a synchronous caller.

        Args:
            check: Called every second or two meanwhile; what it raises cancels the job.
        """
        return self._loop.run(self.keeper.run(model, job), check)

    async def run_async(self, model: ModelRef, job: Job[_T]) -> _T:
        """Runs a job on the engine from any other event loop; cancelling the caller cancels the job."""
        return await self._loop.run_async(self.keeper.run(model, job))

    def stream(self, model: ModelRef, job: StreamJob) -> AsyncGenerator[Any, None]:
        """What a job emits, as it emits it, on any other event loop; closing the iterator cancels the job.

        After the death of an engine the job is called again with a new one: it must skip what it had emitted.
        """
        return self._loop.stream(lambda emit: self.keeper.run(model, lambda engine: job(engine, emit)))

    async def look(self, model: ModelRef, view: Callable[[VectorBank | None], _T]) -> _T:
        """What ``view`` says of a model's bank, None if it never had one; loads nothing."""

        async def on_loop() -> _T:
            return view(self.keeper.bank_of(model))

        return await self._loop.run_async(on_loop())

    async def residual_norms(self, model: ModelRef) -> list[float]:
        """Mean residual norm after every block, measured once; other jobs wait meanwhile."""
        return await self._loop.run_async(self.keeper.residual_norms(model))

    def load(self) -> None:
        """Loads the configured model and waits for it.

        Raises:
            ModelError, ReceiptError: It cannot be loaded, or fails its self-test.
        """
        self.run(resolve_model(self.config.model), _nothing)

    def health(self) -> dict[str, Any]:
        """State of the engine, for ``/health``."""
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
        """What requests hold; all zero when none is under way."""
        engine = self.keeper.engine
        return {
            "jobs": self.keeper.num_jobs,
            "rows": engine.rows_in_use if engine is not None else 0,
            "vectors": engine.bank.num_in_use if engine is not None else 0,
            "engine_requests": engine.llm.get_num_unfinished_requests() if engine is not None else 0,
        }

    @property
    def num_restarts(self) -> int:
        """Engines started after the death of another."""
        return self.keeper.num_restarts

    def close(self) -> None:
        """Ends the engine and its thread; a second call does nothing."""
        if self._loop.alive:
            self._loop.run(self.keeper.unload())
            self._loop.stop()


async def _nothing(_engine: SteeringEngine) -> None:
    return None
