"""One GPU for the models of several services: its memory goes to those that have work.

A service that is about to load a model measures the free memory. If that is too little it waits, and holds a locked
file with the number of bytes meanwhile. A service without work that sees such a file unloads its models. So phases of
a run follow each other on one GPU, each with all of its memory, and what fits together runs together. A service with a
task holds such a file too, so that the others leave tasks to replicas with a free GPU (`poolbench.queue.affinity`).

Decisions are functions of measured numbers. Only `device_memory` asks the driver.
"""

import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from poolbench.cancellation import check_cancelled
from poolbench.errors import PoolbenchError
from poolbench.settings import MemorySettings
from poolbench.statuses import Code

_LOG = logging.getLogger("poolbench.memory")
_T = TypeVar("_T")
_GIB = 2**30
#: Never given away: contexts, fragments, and what changes between a measurement and its use.
MARGIN_BYTES = 512 * 2**20
#: Ends of the names of files of processes that wait for memory, and that work on a task.
WAITING, WORKING = ".waiting", ".working"
_POLL_S = 1.0
#: A service leaves after so long without work; a task is usually followed by the next one at once.
_IDLE_S = 5.0
_PATIENCE_S = 3600.0


class GpuBusyError(PoolbenchError):
    """Other services kept the memory of the GPU; the task is delivered again."""

    code = Code.OUT_OF_MEMORY
    http_status = 503
    retryable = True


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a device in bytes, used by any process."""

    total: int
    free: int

    def fits(self, needed: int) -> bool:
        """Return whether so many bytes can be taken now."""
        return self.free - MARGIN_BYTES >= needed


def engine_share(memory: DeviceMemory, needed: int, claimed: int, most: float) -> float | None:
    """Return the share of a device's memory that an engine should take, or None if too little memory is free now.

    Args:
        memory: Memory of the device, measured before the engine starts.
        needed: Bytes that the engine needs to work at all.
        claimed: Bytes that other services wait for. They are left free if the engine still gets `needed` bytes.
        most: Largest share that the operator allows.
    """
    usable = min(int(most * memory.total), memory.free - MARGIN_BYTES)
    beside = min(usable, memory.free - MARGIN_BYTES - claimed)
    taken = beside if beside >= needed else usable
    return taken / memory.total if taken >= needed else None


def device_memory() -> DeviceMemory:
    """Return the memory of this process's first GPU, as the driver reports it. No context is created on the device."""
    import pynvml

    pynvml.nvmlInit()
    try:
        device = visible_device()
        if device.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(device))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    finally:
        pynvml.nvmlShutdown()
    return DeviceMemory(int(memory.total), int(memory.free))


def visible_device() -> str:
    """Return the number or UUID of the first GPU that this process may use."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


class SharedGpu:
    """Coordinates this process's use of a GPU with the other processes on the GPU.

    Args:
        service: Name of the service.
        folder: Folder for the files of waiting and working processes. All processes that use this GPU share the folder.
        measure: Function that returns the present memory of the device.
    """

    def __init__(self, service: str, folder: Path, measure: Callable[[], DeviceMemory]) -> None:
        self._service, self._folder, self.measure = service, folder, measure
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def wait_for(self, needed: int) -> DeviceMemory:
        """Return the memory of the device as soon as `needed` bytes are free. Raise GpuBusyError after an hour."""
        return self.wait_until(lambda memory: memory if memory.fits(needed) else None, needed)

    def wait_until(self, decide: Callable[[DeviceMemory], _T | None], needed: int) -> _T:
        """Return the first decision of `decide` that is not None. The memory is measured once a second.

        Raise GpuBusyError after an hour, as `wait_for` does.
        """
        if (decision := decide(self.measure())) is not None:
            return decision
        _LOG.info("%s: waits for %.1f GiB of GPU memory", self._service, needed / _GIB)
        ends_at = time.monotonic() + _PATIENCE_S
        with self._held(WAITING, str(needed)):
            while time.monotonic() < ends_at:
                check_cancelled()
                time.sleep(_POLL_S)
                if (decision := decide(self.measure())) is not None:
                    return decision
        free = self.measure().free
        raise GpuBusyError(
            f"the {self._service} needs {needed / _GIB:.1f} GiB of GPU memory, and {free / _GIB:.1f} are free: other "
            "services or programs use the rest; try again later"
        )

    def claimed(self) -> int:
        """Return the bytes that other processes wait for."""
        return sum(_claimed(path) for path in self._of_others(WAITING))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Signal to other processes on this GPU, for the duration of the block, that this process works on a task."""
        with self._held(WORKING, self._service):
            yield

    def others_work(self) -> bool:
        """Return whether another process works on a task on this GPU."""
        return any(_locked(path) for path in self._of_others(WORKING))

    def leave_when_idle(self, busy: Callable[[], bool], release: Callable[[], None]) -> None:
        """Start a thread that calls `release` if this process has been idle for a while and another process waits."""
        threading.Thread(target=self._watch, args=(busy, release), name="shared-gpu", daemon=True).start()

    def _watch(self, busy: Callable[[], bool], release: Callable[[], None]) -> None:
        busy_s = time.monotonic()
        while True:
            time.sleep(_POLL_S)
            now = time.monotonic()
            busy_s = now if busy() else busy_s
            if now - busy_s < _IDLE_S or not self.claimed():
                continue
            _LOG.info("%s: unloads its models, because another service waits for the GPU", self._service)
            try:
                release()
            except Exception:  # the next look tries again
                _LOG.exception("%s: its models could not be unloaded", self._service)
            busy_s = now

    @contextmanager
    def _held(self, sign: str, content: str) -> Iterator[None]:
        """Hold a locked file of this thread, which is removed at the end; the lock ends with this process too."""
        path = self._folder / f"{self._service}-{os.getpid()}.{threading.get_ident()}{sign}"
        hidden = path.with_suffix(".new")  # others remove a file that they see before it is locked
        with hidden.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(content)
            file.flush()
            hidden.rename(path)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def _of_others(self, sign: str) -> list[Path]:
        process_mark = f"-{os.getpid()}."
        return [path for path in self._folder.glob(f"*{sign}") if process_mark not in path.name]


def _locked(path: Path) -> bool:
    """Return whether a live process holds a file; remove the file of one that has ended, which freed the lock."""
    with suppress(OSError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        path.unlink(missing_ok=True)
    return False


def _claimed(path: Path) -> int:
    """Return the bytes of a claim, or 0 if its process has ended."""
    with suppress(OSError, ValueError):
        return int(path.read_text() or 0) if _locked(path) else 0
    return 0


@lru_cache(maxsize=1)
def shared_gpu(service: str) -> SharedGpu | None:
    """Return the `SharedGpu` of this process, or None if services do not share GPUs."""
    if not MemorySettings.load().shared_gpu:
        return None
    device = visible_device().replace("/", "-")
    folder = Path(tempfile.gettempdir()) / f"poolbench-gpu-{os.getuid()}-{device}"
    return SharedGpu(service, folder, device_memory)


def wait_for_room(service: str, first_guess: int) -> None:
    """Wait until PyTorch in this process can take as much memory as at its peak, and at least `first_guess` bytes.

    If services do not share GPUs, return at once. Raise GpuBusyError after an hour.
    """
    if (gpu := shared_gpu(service)) is None:
        return
    import torch

    needed = max(first_guess, torch.cuda.max_memory_reserved()) - torch.cuda.memory_reserved()
    if needed > 0:
        gpu.wait_for(needed)
