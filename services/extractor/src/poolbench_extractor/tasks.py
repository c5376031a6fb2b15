"""Reads what a task asks for: parameters, passages, and the outputs that nobody has committed yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from pydantic import ValidationError

from poolbench.config import StrictModel
from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, InputError
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import words_by_passage
from poolbench_extractor.config import ExtractParams, ModelParams
from poolbench_extractor.frequencies import Frequencies
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.passes import Passages, Reading

if TYPE_CHECKING:
    from poolbench.runtime.taskio import TaskIO

STATES = "states"
#: Bytes of all vectors of one task, which are held until its last passage is done.
MAX_VECTOR_BYTES = 64 * 2**30
#: Characters of all passages of one task.
MAX_TASK_CHARACTERS = 1_000_000_000
_Params = TypeVar("_Params", bound=StrictModel)


def parse_params(kind: type[_Params], task: Task) -> _Params:
    """The task's parameters, checked.

    Raises:
        ConfigError: Naming each wrong field.
    """
    try:
        return kind.model_validate(task.params)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"parameters of {task.kind}: {'; '.join(lines)}") from None


def require_vectors(num_passages: int, num_sets: int, width: int) -> None:
    """Refuse a task whose vectors do not fit into memory.

    Raises:
        TooLargeError: Naming the number and the limit.
    """
    what = f"{num_passages:,} passages x {num_sets:,} strategies and layers x width {width:,} are so many bytes"
    require_at_most(what, 4.0 * num_passages * num_sets * width, MAX_VECTOR_BYTES, "plan smaller tasks")


def read_passages(task: Task, io: TaskIO) -> Passages:
    """The passages of a task, with annotations and token frequencies where it has them."""
    table = io.table("passages")
    if table.num_rows == 0:
        raise InputError(f"task {task.task_id} ({task.kind}): the passages are empty")
    characters = sum(len(text or "") for text in table["text"].to_pylist())
    require_at_most("characters in passages", characters, MAX_TASK_CHARACTERS, "plan smaller tasks")
    words = words_by_passage(io.table("annotations")) if "annotations" in task.inputs else {}
    frequencies = Frequencies.from_table(io.table("frequencies")) if "frequencies" in task.inputs else None
    return Passages(table["passage_id"].to_pylist(), table["text"].to_pylist(), words, frequencies)


@contextmanager
def reporting(device: torch.device, io: TaskIO) -> Iterator[None]:
    """Reports seconds and peak memory of a GPU; on a CPU the runtime's own figures are right."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    yield
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    io.report(device_s=time.perf_counter() - start, peak_bytes=peak)


def reading_of(params: ModelParams) -> Reading:
    """How the passages become tokens."""
    return Reading(include_bos=params.include_bos, max_length=params.max_length)


def missing_outputs(
    decoder: Decoder, params: ExtractParams, missing: Iterable[str]
) -> tuple[dict[int, list[Request]], list[int]]:
    """What the roles ``<strategy>/<layer>`` and ``states/<layer>`` ask for.

    Returns:
        Requests by layer, and the layers whose states are kept.

    Raises:
        ConfigError: If a role names a strategy that the parameters lack.
        LayerError: If it names a layer that the model lacks.
    """
    requests = params.requests()
    wanted: dict[int, list[Request]] = {}
    keep = []
    for role in sorted(missing):
        name, _, number = role.rpartition("/")
        if not number.isdecimal() or name not in {*requests, STATES}:
            allowed = ", ".join([*requests, STATES])
            raise ConfigError(f"output role {role!r} must be <name>/<layer>, with a name out of {allowed}")
        layer = decoder.layer(int(number))
        if name == STATES:
            keep.append(layer)
        else:
            wanted.setdefault(layer, []).append(requests[name])
    return wanted, keep
