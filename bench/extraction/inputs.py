"""Inputs of the extraction benchmarks: models with random weights and passages of random tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from poolbench.config import layer_at_depth
from poolbench.pooling import TokenContext, Words
from poolbench_extractor.encode import Encoded
from poolbench_extractor.models.decoder import Decoder, wrap_decoder

DEPTHS = (0.5, 0.75, 1.0)
SEED = 0


@dataclass(frozen=True)
class Shape:
    """Shape of a Llama; the default has 134 M parameters."""

    hidden: int = 768
    intermediate: int = 2048
    blocks: int = 12
    heads: int = 12
    kv_heads: int = 12
    vocabulary: int = 32000
    dtype: str = "float32"


#: Llama-3.1-8B's, as its configuration gives it.
LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128256, "bfloat16")
TINY = Shape(64, 128, 4, 4, 2, 1000)


def random_decoder(shape: Shape, device: str = "cpu") -> Decoder:
    """Return a Llama of this shape without a tokenizer."""
    return wrap_decoder(random_llama(shape, device), tokenizer=None)


def random_llama(shape: Shape, device: str, **tokens: int) -> PreTrainedModel:
    """Return a Llama of this shape, its weights drawn on the device itself; `tokens` are ids of special tokens."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=2048,
        vocab_size=shape.vocabulary,
        **tokens,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype), attn_implementation="sdpa")


def layers_of(decoder: Decoder) -> list[int]:
    """Return the layers at the default depths."""
    return [layer_at_depth(depth, decoder.num_blocks) for depth in DEPTHS]


def random_passages(num: int, num_tokens: int, vocabulary: int) -> list[Encoded]:
    """Return random token ids after a BOS, with an annotation of three words per four tokens."""
    rng = np.random.default_rng(SEED)
    passages = []
    for index in range(num):
        ids = rng.integers(3, vocabulary, num_tokens)
        ends = np.arange(num_tokens) * 4
        offsets = np.stack([np.maximum(ends - 4, 0), ends], axis=1)
        context = TokenContext(f"p{index}", offsets, np.arange(num_tokens) == 0, ids, random_words(rng, ends[-1]))
        passages.append(Encoded(index, context))
    return passages


def random_words(rng: np.random.Generator, num_characters: int) -> Words:
    """Return words of 16/3 characters on average with plausible tags; clauses of 8 words, sentences of 20."""
    cuts = np.sort(rng.choice(np.arange(1, num_characters), num_characters * 3 // 16, replace=False))
    start, end = cuts[:-1], cuts[1:]
    num = len(start)
    return Words(
        start=start,
        end=end,
        upos=rng.choice(["NOUN", "VERB", "DET", "ADP", "PUNCT"], num).tolist(),
        dep=rng.choice(["nsubj", "obj", "case", "mark", "det", "conj"], num).tolist(),
        head=[0] * num,
        lemma=["word"] * num,
        entity=rng.choice(["", "", "", "PERSON"], num).tolist(),
        sentence=np.arange(num) // 20,
        clause=np.arange(num) // 8,
        keyword=rng.random(num) < 0.05,
    )
