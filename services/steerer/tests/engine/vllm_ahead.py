"""vLLM's CPU worker with the parts of its GPU runner that schedule ahead.

vLLM never schedules asynchronously on CPUs. Its runner for GPUs has everything for it, and needs of CUDA only streams
and events, which have nothing to do on a CPU. The module is imported by the engine's process.
"""

from contextlib import nullcontext
from typing import Any

import torch


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Stream:
    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...


torch.Event = torch.cuda.Event = _Event  # type: ignore[assignment,misc]
torch.cuda.Stream = _Stream  # type: ignore[assignment,misc]
torch.cuda.current_stream = lambda *_: _Stream()  # type: ignore[assignment,misc]
torch.cuda.stream = lambda _: nullcontext()  # type: ignore[assignment,misc]

from poolbench_steerer.plugin.worker_cpu import SteeringCPUWorker as Worker  # noqa: E402, F401
