"""What engines are compared with: Transformers with hooks; and many ways to steer."""

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from poolbench_steerer.engine import GenerationRequest, launch
from poolbench_steerer.plugin.spec import OPERATION_CODES, Edit, Steering

NUM_LAYERS = 6
STRONG = 60.0  # about the residual norm of the tiny model


def generate(host: Any, model_ref: Any, requests: Sequence[Any]) -> list[Any]:
    return host.run(model_ref, lambda engine: engine.generate(requests))


def texts(made: Sequence[Any]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in made]


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    """The tiny model in Transformers."""
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.fixture
def small_host(steerer_config: Any) -> Iterator[Any]:
    """A host for small models of other architectures, one for each test."""
    from poolbench_steerer.host import EngineHost

    settings = {"enforce_eager": True, "kv_cache_gib": 0.05, "max_num_batched_tokens": 128, "max_model_len": 128}
    host = EngineHost(steerer_config.model_copy(update=settings))
    yield host
    host.close()
    gc.collect()


@pytest.fixture(scope="module")
def vector_ids(host: Any, model_ref: Any, unit_vectors: np.ndarray) -> list[str]:
    """Ids of the vectors, registered again for each file: other tests may have evicted them."""
    return host.run(model_ref, lambda engine: engine.register(list(unit_vectors)))


Vectors = dict[str, np.ndarray]


def edited(stream: Any, edit: Any, vectors: Vectors) -> Any:
    """The residual stream after one edit, as SCIENCE and the documentation of ``Edit`` state it."""
    vector = torch.tensor(vectors[edit.vector_id])
    unit = vector / vector.norm()
    along = (stream * unit).sum(dim=-1, keepdim=True)
    if edit.operation == "clamp":
        return stream + (edit.alpha - along) * unit
    if edit.operation == "erase":
        return stream - edit.alpha * along * unit
    moved = stream + edit.alpha * vector
    if edit.operation == "add":
        return moved
    return moved * stream.norm(dim=-1, keepdim=True) / moved.norm(dim=-1, keepdim=True)


def hook(edits: Sequence[Any], span: slice, vectors: Vectors, where: Any, holds: list[Any], *, decides: bool) -> Any:
    """Edits the output of a block, which in Transformers is the whole stream, where the condition holds.

    The hook that `decides` writes into `holds` at which positions it does.
    """

    def steer(_module: Any, _inputs: Any, output: Any) -> Any:
        stream = (output[0] if isinstance(output, tuple) else output).clone()
        if decides:
            vector = torch.tensor(vectors[where.vector_id])
            holds[:] = [((stream @ (vector / vector.norm()) > where.threshold) == where.above)[:, span, None]]
        for edit in edits:
            changed = edited(stream[:, span], edit, vectors)
            stream[:, span] = torch.where(holds[0], changed, stream[:, span]) if where else changed
        return (stream, *output[1:]) if isinstance(output, tuple) else stream

    return steer


@contextmanager
def hooked(blocks: Sequence[Any], steering: Any, num_prompt: int, vectors: Vectors) -> Iterator[None]:
    """The blocks with the hooks that a steering asks for."""
    handles, holds, where = [], list[Any](), steering.where if steering else None
    for layer, block in enumerate(blocks):
        edits = [edit for edit in (steering.applied if steering else ()) if edit.layer == layer]
        decides = where is not None and where.layer == layer
        if edits or decides:
            span = slice(*steering.span(num_prompt))
            handles.append(block.register_forward_hook(hook(edits, span, vectors, where, holds, decides=decides)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def transformers_greedy(
    model: Any, blocks: Sequence[Any], prompt: Sequence[int], steering: Any, vectors: Vectors, num_new: int
) -> tuple[int, ...]:
    """Greedy text of a Transformers model with steering hooks, the whole text computed again for every token.

    The oracle shares nothing with the engine but ``Steering``.
    """
    ids = list(prompt)
    with hooked(blocks, steering, len(prompt), vectors), torch.inference_mode():
        for _ in range(num_new):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


def transformers_logprobs(
    model: Any, blocks: Sequence[Any], prompt: Sequence[int], steering: Any, vectors: Vectors
) -> list[float]:
    """Log-probability of each prompt token but the first, with steering hooks."""
    with hooked(blocks, steering, len(prompt), vectors), torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, :-1].double()
    chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(prompt)[1:, None])
    return chosen[:, 0].tolist()


def transformers_next(
    model: Any, blocks: Sequence[Any], prompt: Sequence[int], steering: Any, vectors: Vectors
) -> list[float]:
    """Log-probability of every next token, with steering hooks."""
    with hooked(blocks, steering, len(prompt), vectors), torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, -1].double()
    return torch.log_softmax(logits, dim=-1).tolist()


def transformers_scores(
    model: Any, blocks: Sequence[Any], request: Any, text: Sequence[int], vectors: Vectors
) -> np.ndarray:
    """What a request reads at every position of a text, behind the steering hooks, float64 [T, readings]."""
    columns: list[np.ndarray] = []

    def reading(unit: Any) -> Any:
        def read(_module: Any, _inputs: Any, output: Any) -> None:
            stream = output[0] if isinstance(output, tuple) else output
            columns.append((stream[0].double() @ unit).numpy())

        return read

    num_prompt = len(request.prompt_ids)
    with torch.inference_mode():
        for one in request.readings:  # hooks run in the order in which they were registered
            unit = torch.tensor(vectors[one.vector_id]).double()
            with hooked(blocks, request.steering, num_prompt, vectors):
                handle = blocks[one.layer].register_forward_hook(reading(unit / unit.norm()))
                model(torch.tensor([[*request.prompt_ids, *text]]))
                handle.remove()
            columns[-1] = columns[-1] + one.offset
    return np.stack(columns, axis=1)


def many_settings(vector_ids: Sequence[str], num_layers: int, norm: float, count: int) -> list[Any]:
    """Different ways to steer: every operation, selector, layer and sign; one to three edits; two unsteered."""
    operations, selectors = list(OPERATION_CODES), ["generated", "prompt", "all", 2, "generated", 7]
    made: list[Any] = []
    for index in range(count):
        edits = tuple(
            Edit(
                vector_ids[(index + 5 * e) % len(vector_ids)],
                (index + (e if index % 2 else 0)) % num_layers,
                _alpha(operations[(index + e) % 4], norm * (0.2 + 0.9 * index / count) * (-1) ** (index // 4)),
                operations[(index + e) % 4],
            )
            for e in range(1 + index // 4 % 3)
        )
        made.append(Steering(edits, selectors[index // 2 % 6]))
    made[3] = made[count // 2] = None
    return made


def _alpha(operation: str, size: float) -> float:
    return 1.0 if operation == "erase" else size


@contextmanager
def scheduling_ahead() -> Iterator[None]:
    """Engines that start on a CPU meanwhile schedule a step ahead, as vLLM does on GPUs."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def asynchronous(cls: Any, config: Any) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(asynchronous))
        patch.setitem(launch._WORKERS, "cpu", "vllm_ahead.Worker")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


async def in_worker(engine: Any, function: Callable[[Any], Any]) -> Any:
    """Calls a function of a test with the steering worker, in the engine's process, between two steps."""
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    (result,) = await engine.llm.collective_rpc(data)
    return result


@pytest.fixture(scope="module")
def requests(prompts: Any, vector_ids: Any) -> list[Any]:
    """64 requests with 62 settings: twice what one batch of the engine takes, prompts of 20 to 100 tokens."""
    long = sum(prompts, ())
    settings = many_settings(vector_ids, NUM_LAYERS, STRONG, 64)
    return [
        GenerationRequest(long[7 * index % 90 :][: 20 + index], 10, steering, ignore_eos=True)
        for index, steering in enumerate(settings)
    ]
