"""`python -m recipes.planted_lm`: write `assets/planted_lm`, a model of two blocks whose weights are set, not trained.

Block 0 adds nothing, so that its states are the vectors of `poolbench_corpora.places.words`. Block 1 attends to
all earlier positions alike, copies from them whether the two words of the exclusive or were there, and multiplies both.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from poolbench_corpora.places.words import (
    FIRST,
    SECOND,
    SEEN_BOTH,
    SEEN_FIRST,
    SEEN_SECOND,
    UNKNOWN,
    WIDTH,
    vectors_of,
    vocabulary,
)

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "planted_lm"
BOS, PAD = "<s>", "<pad>"
_HEADS, _INNER = 2, 8
_GAIN = 30.0  # of what block 1 has seen: one word among a hundred earlier ones gives about 1
#: Far from every word, so that a strategy that reads special tokens by mistake is found out.
_SPECIAL_LENGTH = 40.0


def main() -> None:
    """Write model, tokenizer and card."""
    words = [BOS, PAD, UNKNOWN, *vocabulary()]
    tokenizer, model = make_tokenizer(words), make_model(words)
    FOLDER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    for path in FOLDER.glob("*.safetensors"):
        path.chmod(0o644)


def make_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word or full stop, without case, that adds `<s>`."""
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, numbers[BOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, pad_token=PAD, unk_token=UNKNOWN
    )


def make_model(words: list[str]) -> LlamaForCausalLM:
    """Return the model of these words, float32."""
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=WIDTH,
        intermediate_size=_INNER,
        num_hidden_layers=2,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        dtype="float32",
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.fill_(1.0 if "norm" in name else 0.0)
        model.get_input_embeddings().weight.copy_(torch.from_numpy(_embeddings(words)))
        _set_block(model.model.layers[1])
    return model


def _embeddings(words: list[str]) -> np.ndarray:
    special = np.zeros((3, WIDTH), dtype=np.float32)
    special[0, -1] = special[1, -2] = _SPECIAL_LENGTH
    special[:, 0] = _SPECIAL_LENGTH
    return np.concatenate([special, vectors_of(words[3:])])


def _set_block(block: Any) -> None:
    """Let queries and keys be zero, so that attention is uniform, and values carry the two words."""
    attention, mlp = block.self_attn, block.mlp
    attention.v_proj.weight[0, FIRST] = attention.v_proj.weight[1, SECOND] = 1.0
    attention.o_proj.weight[SEEN_FIRST, 0] = attention.o_proj.weight[SEEN_SECOND, 1] = _GAIN
    mlp.gate_proj.weight[0, SEEN_FIRST] = mlp.up_proj.weight[0, SEEN_SECOND] = 1.0
    mlp.down_proj.weight[SEEN_BOTH, 0] = 1.0


if __name__ == "__main__":
    main()
