"""A tiny random Llama with a byte-level BPE tokenizer, one engine on it for all tests, and a server on that engine."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import wait_until

os.environ.setdefault("OMP_NUM_THREADS", "1")

TOKEN = "secret"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
WIDTH = 256
NUM_LAYERS = 6
_LINES = (
    "The river runs past the old mill because the valley is steep.",
    "Although it rained, the market opened and the bakers sold every loaf.",
    "If the wind turns, the boats will wait in the harbour until morning.",
    "Nobody saw the fox, but its tracks crossed the field twice.",
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama: hidden 256, head size 64, 6 blocks, window 512."""
    return _saved_model(tmp_path_factory.getbasetemp())


@cache  # tests of other folders that import these fixtures share model and engine with the tests here
def _saved_model(base: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = base / "tiny_llama"
    folder.mkdir()
    size = _save_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size, hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        bos_token_id=0, eos_token_id=1, initializer_range=0.08, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path) -> int:
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(_LINES * 4, vocab_size=400, special_tokens=["<bos>", "<eos>"], show_progress=False)
    trainer._tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=trainer._tokenizer, bos_token="<bos>", eos_token="<eos>")
    fast.chat_template = (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message.role == 'system' %}{{ raise_exception('only users and assistants speak') }}{% endif %}"
        "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    fast.save_pretrained(folder)
    return len(fast)


@pytest.fixture(scope="session")
def steerer_config(tiny_model: Path) -> Any:
    """The settings of the engine that all tests share."""
    return small_engine(str(tiny_model))


def small_engine(model: str) -> Any:
    """Settings of a small engine whose limits are met in tests: prompts are chunked and requests preempted.

    The KV cache holds about 1,000 tokens at 6 KiB each.
    """
    from poolbench.settings import SteererSettings

    return SteererSettings(
        model=model, max_model_len=256, max_num_seqs=32, max_num_batched_tokens=96, kv_cache_gib=0.006,
        bank_slots=64, max_steered_requests=48, num_threads=1, tool_parser="hermes",
    )  # fmt: skip


@pytest.fixture(scope="session")
def host(tiny_model: Path, steerer_config: Any) -> Iterator[Any]:
    """An engine host; its engine starts with the first test that needs it."""
    with_engine = _engine_host(steerer_config.model)
    yield with_engine
    with_engine.close()


@cache
def _engine_host(model: str) -> Any:
    from poolbench_steerer.host import EngineHost

    return EngineHost(small_engine(model))


@pytest.fixture(scope="session")
def model_ref(tiny_model: Path) -> Any:
    from poolbench.config import resolve_model

    return resolve_model(str(tiny_model))


@pytest.fixture(scope="session")
def prompts(tiny_model: Path, model_ref: Any) -> list[tuple[int, ...]]:
    """16 prompts of different lengths as token ids."""
    from poolbench_steerer.tokens import tokens_of

    tokens = tokens_of(model_ref)
    return [tokens.encode(" ".join(_LINES)[start : start + 20 + 6 * start]) for start in range(16)]


@pytest.fixture(scope="session")
def unit_vectors() -> np.ndarray:
    """16 unit vectors, float32 [16, width]."""
    vectors = np.random.default_rng(5).standard_normal((16, WIDTH)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


async def pieces_of(engine: Any, request: Any, *, in_steps: bool = True) -> list[Any]:
    """Generate a text. Return its piece of every step, or the whole text as one piece."""
    from vllm.sampling_params import RequestOutputKind

    from poolbench_steerer.engine.requests import sampling_params

    params = sampling_params(request)
    params.output_kind = RequestOutputKind.DELTA if in_steps else RequestOutputKind.FINAL_ONLY
    with engine.bank.in_use(request.vector_ids) as slots:
        return [piece async for _, piece in engine.outputs(request, params, slots)]


def engine_processes() -> set[int]:
    """Return the ids of the engine processes that this process has started."""
    import psutil

    return {p.pid for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()}


@contextmanager
def standing_still(host: Any) -> Iterator[None]:
    """The engine's process stands still, so that no text ends meanwhile, however fast it is."""
    pid = host.keeper.engine.llm.engine_core.resources.engine_manager.processes[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def settle(host: Any) -> None:
    """Wait until nothing is in use."""
    wait_until(lambda: not any(host.in_use().values()))


@contextmanager
def serving(host: Any, store: Path) -> Iterator[str]:
    """The steerer's HTTP face on ``host``, behind a real server; yields its address."""
    import uvicorn

    from poolbench.http.api import build_api
    from poolbench.storage import Artifacts
    from poolbench.storage.folder import FolderStore
    from poolbench_steerer.service import SteererService

    service = SteererService(host, lambda: Artifacts(FolderStore(store)))
    config = uvicorn.Config(build_api(service, TOKEN), port=0, log_level="warning", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture(scope="session")
def address(host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server on the shared test engine."""
    with serving(host, tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    """An OpenAI client of the server."""
    import openai

    with openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A context manager that serves another host."""
    return lambda host, store=None: serving(host, store or tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[Any]:
    """An HTTP client of the server."""
    import httpx

    with httpx.Client(base_url=address, headers=HEADERS, timeout=300, trust_env=False) as client:
        yield client
