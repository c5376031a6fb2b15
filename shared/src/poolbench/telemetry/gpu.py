"""Memory and load of GPUs, read from NVIDIA's driver without creating a CUDA context."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_DEVICE = Path("/dev/nvidiactl")


@dataclass(frozen=True)
class GpuUse:
    """One GPU at one moment."""

    index: str  # index on its node
    memory_bytes: int
    utilization: float  # share of the last sample period in which it was busy, 0 to 1


def gpu_use(indices: Sequence[str] | None = None) -> Iterator[GpuUse]:
    """Yield the use of GPUs of this machine, by default of all; nothing without a GPU or its library."""
    nvml = _nvml()
    if nvml is None:
        return
    for index in range(nvml.nvmlDeviceGetCount()) if indices is None else indices:
        with contextlib.suppress(nvml.NVMLError, ValueError):
            handle = nvml.nvmlDeviceGetHandleByIndex(int(index))
            memory, load = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetUtilizationRates(handle)
            yield GpuUse(str(index), int(memory.used), load.gpu / 100)


def num_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine or container."""
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*") if device.name.removeprefix("nvidia").isdecimal())


@cache
def _nvml() -> Any:
    """Return NVIDIA's library, initialised; None without a GPU."""
    if not _DEVICE.exists():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package is absent, or the driver does not answer
        return None
    return pynvml
