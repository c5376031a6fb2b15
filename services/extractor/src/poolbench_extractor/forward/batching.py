"""Batches by token budget, sorted by length. If memory runs out, a batch is halved and run again."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from poolbench.errors import PoolbenchError
from poolbench.machine import memory
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import Encoded


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
    middle = len(batch) // 2
    run_halving(batch[:middle], run)
    run_halving(batch[middle:], run)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or memory.is_out_of_memory(error)
