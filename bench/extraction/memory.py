"""Peak memory of one method: on a GPU from PyTorch's allocator, on a CPU from a process of its own."""

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from common import reports_memory, reset_peak, resident_bytes

from extraction.inputs import Shape, layers_of, random_decoder, random_passages
from extraction.ways import Workload, ours, plain, requests_of
from poolbench_extractor.config import BatchLimits

SIDES: dict[str, Callable[[Workload], object]] = {
    "plain": plain,
    "ours": lambda work: ours(work, requests_of()),
    "gradient": lambda work: ours(work, requests_of(gradient=True)),
}


@dataclass(frozen=True)
class Peak:
    """Bytes before one call, mostly the model's weights, and at its peak."""

    before: int
    peak: int

    @property
    def growth(self) -> int:
        """Return the memory that the call itself needed."""
        return self.peak - self.before


@dataclass(frozen=True)
class Size:
    """Model and passages that a process builds for itself."""

    shape: Shape
    passages: int
    tokens: int
    batch_tokens: int

    def work(self, device: str = "cpu") -> Workload:
        """Build both."""
        decoder = random_decoder(self.shape, device)
        passages = random_passages(self.passages, self.tokens, self.shape.vocabulary)
        return Workload(decoder, passages, layers_of(decoder), BatchLimits(max_tokens=self.batch_tokens))


def peaks_on_cpu(size: Size) -> dict[str, Peak] | None:
    """Return the peak resident memory of each side in a process of its own; None if the system does not report it.

    The processes are forked, which spares them the imports, so call it before this one has used a thread pool.
    """
    if not reports_memory():
        return None
    peaks = {}
    for side in SIDES:
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            peaks[side] = pool.submit(_resident_peak, side, size, torch.get_num_threads()).result()
    return peaks


def peaks_on_gpu(work: Workload) -> dict[str, Peak]:
    """Return the peak allocated memory of each side."""
    return {side: _allocated_peak(partial(run, work)) for side, run in SIDES.items()}


def summary(peaks: dict[str, Peak] | None) -> dict[str, Any]:
    """Return the ratios to the plain forward: of the whole peak, and of the growth above the loaded model."""
    if peaks is None:
        return {"reason": "the system does not tell the peak resident memory of a process"}
    base = peaks["plain"]
    return {
        "bytes": {side: asdict(peak) for side, peak in peaks.items()},
        "growth_ratio": {side: peak.growth / base.growth for side, peak in peaks.items()},
        "total_ratio": {side: peak.peak / base.peak for side, peak in peaks.items()},
    }


def _resident_peak(side: str, size: Size, num_threads: int) -> Peak:
    torch.set_num_threads(num_threads)
    work = size.work()
    SIDES[side](work.first(1))  # loads libraries and makes their buffers, which the figures leave out
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_peak()
    SIDES[side](work)
    return Peak(before, resident_bytes("VmHWM"))


def _allocated_peak(run: Callable[[], object]) -> Peak:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return Peak(before, torch.cuda.max_memory_allocated())
