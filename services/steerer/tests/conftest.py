"""A tiny random Llama with a byte-level BPE tokenizer, and one engine on it for all tests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

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
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny_llama")
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
    """A small engine whose limits are met in tests: prompts are chunked and requests preempted.

    The KV cache holds about 1,000 tokens at 6 KiB each.
    """
    from poolbench.settings import SteererSettings

    return SteererSettings(
        model=str(tiny_model), max_model_len=256, max_num_seqs=32, max_num_batched_tokens=96, kv_cache_gib=0.006,
        bank_slots=64, max_steered_requests=48, num_threads=1,
    )  # fmt: skip


@pytest.fixture(scope="session")
def host(tiny_model: Path, steerer_config: Any) -> Iterator[Any]:
    """An engine host; its engine starts with the first test that needs it."""
    from poolbench_steerer.host import EngineHost

    with_engine = EngineHost(steerer_config)
    yield with_engine
    with_engine.close()


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


@pytest.fixture(scope="session")
def engine_processes() -> Callable[[], set[int]]:
    """Tells the ids of the engine processes that this process has started."""
    import psutil

    def running() -> set[int]:
        return {p.pid for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()}

    return running
