"""Batches by token budget, sorted by length. If memory runs out, a batch is halved and run again."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from poolbench.errors import PoolbenchError
from poolbench.machine import memory
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import Encoded

_END = object()


class DeviceMemoryError(PoolbenchError):
    """A single passage does not fit into the memory of the device."""

    code = "out_of_memory"
    http_status = 413


def make_batches(passages: Iterable[Encoded], limits: BatchLimits) -> Iterator[list[Encoded]]:
    """Yield batches that stay within the limits of positions and passages.

    The positions of a batch are its number of passages times the length of its longest passage. The longest passages
    come first, so that a limit that is too large fails at once. A passage beyond the limit is a batch of its own.
    Passages beyond the model's rotary switch never share a batch with shorter passages.
    """
    batch: list[Encoded] = []
    for passage in sorted(passages, key=lambda item: (-item.num_positions, item.index)):
        if batch and not _fits(passage, batch, limits):
            yield batch
            batch = []
        batch.append(passage)
    if batch:
        yield batch


def _fits(passage: Encoded, batch: Sequence[Encoded], limits: BatchLimits) -> bool:
    longest, size = batch[0].num_positions, len(batch) + 1
    same_rotary = passage.stretched == batch[0].stretched
    return same_rotary and size <= limits.max_passages and longest * size <= limits.max_tokens


#: Runs a batch in steps. A step ends where the host would wait for the device.
Steps = Callable[[Sequence[Encoded]], Iterator[None]]


class BatchesAhead:
    """Batches of which the device has the next while the host works on the last.

    The first step of a batch gives the forward pass to the device. It runs before the second step of the batch before
    it, and that one before the third step of the batch before. So the device never waits for the host, and the states
    of two batches exist at once.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._under_way: list[tuple[Sequence[Encoded], Iterator[None]]] = []
        self._too_large: list[Sequence[Encoded]] = []

    def begin(self, batch: Sequence[Encoded]) -> None:
        """Run the first step of a batch, and then one step of each batch before."""
        self._under_way.insert(0, (batch, self._steps(batch)))
        self._advance()
        if self._too_large:
            self.finish()

    def finish(self) -> None:
        """Run all batches to their ends. Errors as in `run_halving`."""
        while self._under_way:
            self._advance()
        while self._too_large:
            run_halving(self._too_large.pop(0), self._run_alone)

    def _advance(self) -> None:
        self._under_way = [(batch, steps) for batch, steps in self._under_way if self._goes_on(batch, steps)]

    def _goes_on(self, batch: Sequence[Encoded], steps: Iterator[None]) -> bool:
        try:
            return next(steps, _END) is not _END
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Beside another batch it may only have been too large for what that left of the memory.
        self._too_large += [batch] if len(self._under_way) > 1 else _halves(batch)
        return False

    def _run_alone(self, batch: Sequence[Encoded]) -> None:
        for _ in self._steps(batch):
            pass


def together(parts: Iterable[Iterator[None]]) -> Iterator[None]:
    """Run the steps of several parts of a batch side by side."""
    under_way = list(parts)
    while under_way := [part for part in under_way if next(part, _END) is not _END]:
        yield


def run_halving(batch: Sequence[Encoded], run: Callable[[Sequence[Encoded]], None]) -> None:
    """Run a batch. If memory runs out, run the two halves of the batch.

    Args:
        run: Function that computes a batch. It writes results by passage index, because passages may be run twice.

    Raises:
        DeviceMemoryError: A single passage does not fit into memory.
    """
    try:
        run(batch)
        return
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) == 1:
            raise DeviceMemoryError(
                f"a passage of {batch[0].num_positions} tokens does not fit into memory; "
                "use a smaller model, a smaller dtype or a larger device"
            ) from error
    # Outside the handler: its traceback would keep the tensors of the failed attempt alive.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    for half in _halves(batch):
        run_halving(half, run)


def _halves(batch: Sequence[Encoded]) -> list[Sequence[Encoded]]:
    """Return the two halves of a batch, or the batch if it is one passage."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]] if middle else [batch]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or memory.is_out_of_memory(error)
