"""The inputs of a task: parameters, passages, and the outputs that are still missing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, InputError, shown
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import words_by_passage
from poolbench.steps.extractor import ANNOTATIONS, FREQUENCIES, PASSAGES, STATES, VECTORS, ExtractParams, ReadingParams
from poolbench_extractor.core import PassageTexts, Reading
from poolbench_extractor.encode import Frequencies
from poolbench_extractor.models.decoder import Decoder

if TYPE_CHECKING:
    from poolbench.runtime.taskio import TaskIO

#: Bytes of all vectors of one task, which are held until its last passage is done.
MAX_VECTOR_BYTES = 64 * 2**30
#: Characters of all passages of one task.
MAX_TASK_CHARACTERS = 1_000_000_000


def require_vectors(num_passages: int, num_sets: int, width: int) -> None:
    """Raise TooLargeError, with the number and the limit, for vectors that do not fit into memory."""
    what = f"{num_passages:,} passages x {num_sets:,} strategies and layers x width {width:,} are so many bytes"
    require_at_most(what, 4.0 * num_passages * num_sets * width, MAX_VECTOR_BYTES, "plan smaller tasks")


def read_passages(task: Task, io: TaskIO) -> PassageTexts:
    """Return the passages of a task, with annotations and token frequencies where it has them."""
    table = io.table(PASSAGES())
    if table.num_rows == 0:
        raise InputError(f"task {task.task_id} ({task.kind}): the passages are empty")
    characters = sum(len(text or "") for text in table["text"].to_pylist())
    require_at_most("characters in passages", characters, MAX_TASK_CHARACTERS, "plan smaller tasks")
    words = words_by_passage(io.table(ANNOTATIONS())) if ANNOTATIONS() in task.inputs else {}
    frequencies = Frequencies.from_table(io.table(FREQUENCIES())) if FREQUENCIES() in task.inputs else None
    return PassageTexts(table["passage_id"].to_pylist(), table["text"].to_pylist(), words, frequencies)


@contextmanager
def reporting(device: torch.device, io: TaskIO) -> Iterator[None]:
    """Report seconds and peak memory of a GPU; on a CPU the runtime's own figures are right."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    yield
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    io.report(device_s=time.perf_counter() - start, peak_bytes=peak)


def reading_of(params: ReadingParams) -> Reading:
    """Return how the passages become tokens."""
    return Reading(include_bos=params.include_bos, max_length=params.max_length)


def missing_outputs(
    decoder: Decoder, params: ExtractParams, missing: Iterable[str]
) -> tuple[dict[int, list[Request]], list[int]]:
    """Return the requests by layer, and the layers whose states are kept, for the missing outputs.

    Raises:
        ConfigError: If a role names a strategy that the parameters lack.
        LayerError: If it names a layer that the model lacks.
    """
    requests = {entry.id: Request.of(entry.id, entry.params) for entry in params.strategies}
    missing = set(missing)
    keep = [decoder.layer(at.layer) for _, at in STATES.among(missing)]
    wanted: dict[int, list[Request]] = {}
    for role, cell in VECTORS.among(missing):
        if STATES.parse(role) is not None:
            continue
        if cell.strategy not in requests:
            raise ConfigError(f"output role {shown(role)} names none of the strategies {', '.join(requests) or 'none'}")
        wanted.setdefault(decoder.layer(cell.layer), []).append(requests[cell.strategy])
    return wanted, keep
