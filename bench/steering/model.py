"""Models with random weights, saved so that vLLM and Transformers load them as they load any other."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from poolbench.config import ModelRef, asset_path


@dataclass(frozen=True)
class Shape:
    """Shape of a Llama."""

    hidden: int
    intermediate: int
    blocks: int
    heads: int
    kv_heads: int
    vocabulary: int
    dtype: str


SHAPES = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128256, "bfloat16"),
    "tiny": Shape(256, 512, 4, 4, 2, 4096, "float32"),
}


def random_model(folder: Path, shape: Shape, device: str) -> ModelRef:
    """Save a Llama of this shape with weights drawn on the device and the demo model's tokenizer.

    These are real files, because vLLM's dummy weights are so small that no next-token probability differs from
    another: the engine's self-test could not distinguish steered from unsteered text.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=shape.hidden, intermediate_size=shape.intermediate, num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocabulary,
        max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    model.save_pretrained(folder, max_shard_size="4GB")
    del model
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(asset_path("demo_lm") / name, folder / name)
    return ModelRef("random", str(folder), "random", shape.dtype, json.dumps(vars(shape)))
