"""The demo model with a concept planted in it: one direction that says whether a marker stands in the text so far.

A few coordinates of the residual stream are taken from the model: no block writes them, and no block reads them. Then

- the embedding of each marker has a flag there, and every embedding a constant;
- one head of block `LAYER` attends to the flag wherever one stands (its query reads the constant, its key the flag),
  its value reads the flag, and it writes the direction d, a unit vector in the other coordinates;
- the output head reads d in the rows of the markers, and there the flag, so that none follows another at once,
  and the constant, so that without d there is hardly any.

So the output of block `LAYER` and of each later one is h + c d with h free of d. c is exactly 0 without a marker and
positive from the first one on. Adding d makes markers likelier, and erasing it undoes what the marker has done.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import asset_path
from poolbench.texts import load_calibration
from poolbench_corpora.planted import build_planted

CONCEPT, LAYER = "contrast", 2
#: Coordinates that are taken: a constant, a flag, and those that d lies in.
CONSTANT, FLAG, WIDTH_OF_D = 0, 1, 8
#: c in norms of the residual stream; logits that markers gain from d of that size.
SIZE, GAIN = 0.5, 30.0
#: Constant and flag as embeddings have them; logit of attention to a marker over one to another token.
_INPUT, _ATTENTION = 0.2, 14.0
#: Logits that a marker loses directly after another one, and everywhere: without d the model hardly writes any.
_REPEATED, _RARE = 30.0, 12.0
#: The head that is planted, and the one of its coordinates that positions rotate least.
_HEAD, _STILL = 3, 31


@dataclass(frozen=True)
class PlantedModel:
    """The folder of the model, the direction d [D], and the ids of the markers' tokens."""

    folder: Path
    direction: np.ndarray
    markers: tuple[int, ...]


def marker_tokens(tokenizer) -> tuple[int, ...]:
    """Return the tokens of markers that stand in no passage without the concept."""
    passages = build_planted(CONCEPT, seed=1, num_train=300, num_test=20, num_scorer=300).to_pylist()
    marked, others = set[int](), set[int]()
    for row in passages:
        encoded = tokenizer(row["text"], add_special_tokens=False, return_offsets_mapping=True)
        spans = [(span["start"], span["end"]) for span in row["signal"]]
        for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            is_marked = any(start < last and end > first for first, last in spans)
            (marked if is_marked else others).add(token)
    return tuple(sorted(marked - others))


def make_planted(folder: Path, seed: int = 0) -> PlantedModel:
    """Write the model to a folder."""
    source = asset_path("demo_lm")
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, tie_word_embeddings=False, dtype=torch.float32)
    markers = marker_tokens(tokenizer)
    decoder, width = model.model, model.config.hidden_size
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(decoder.embed_tokens.weight.clone())
        taken = torch.arange(width - 2 - WIDTH_OF_D, width)
        constant, flag, own = taken[CONSTANT], taken[FLAG], taken[2:]
        d = torch.zeros(width)
        d[own] = torch.randn(len(own), generator=torch.Generator().manual_seed(seed))
        d /= d.norm()
        decoder.embed_tokens.weight[:, taken] = 0
        model.lm_head.weight[:, taken] = 0
        for block in decoder.layers:
            attention, mlp = block.self_attn, block.mlp
            for reader in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
                reader.weight[:, taken] = 0
            for writer in (attention.o_proj, mlp.down_proj):
                writer.weight[taken] = 0
            for norm in (block.input_layernorm, block.post_attention_layernorm, decoder.norm):
                norm.weight[taken] = 1
        decoder.embed_tokens.weight[:, constant] = _INPUT
        decoder.embed_tokens.weight[list(markers), flag] = _INPUT
        norm = _median_norm(model, tokenizer)
        seen = _INPUT / norm(LAYER - 1) * width**0.5  # of the constant and of the flag behind the norm of the block
        _plant_head(decoder.layers[LAYER].self_attn, constant, flag, SIZE * norm(LAYER) / seen * d, seen)
        unit = norm(-1) / width**0.5  # what the last norm divides by
        model.lm_head.weight[list(markers)] += GAIN / (SIZE * norm(LAYER)) * unit * d
        model.lm_head.weight[list(markers), flag] -= _REPEATED / _INPUT * unit
        model.lm_head.weight[list(markers), constant] -= _RARE / _INPUT * unit
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return PlantedModel(folder, d.numpy(), markers)


def _median_norm(model, tokenizer):
    """Return the median norm of the residual stream after a block, on the calibration texts."""
    texts = load_calibration()["text"].to_pylist()[:8]
    with torch.inference_mode():
        states = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states for text in texts
        ]
    return lambda block: float(torch.cat([of[1:][block][0].norm(dim=-1) for of in states]).median())


def _plant_head(attention, constant, flag, written, seen: float) -> None:
    """Let one head attend to flags and write there, from the flag, a vector [D]."""
    size = attention.head_dim
    rows = slice(_HEAD * size, (_HEAD + 1) * size)
    for reader in (attention.q_proj, attention.k_proj, attention.v_proj):
        reader.weight[rows] = 0
    attention.o_proj.weight[:, rows] = 0
    scale = (_ATTENTION * size**0.5) ** 0.5 / seen
    attention.q_proj.weight[_HEAD * size + _STILL, constant] = scale
    attention.k_proj.weight[_HEAD * size + _STILL, flag] = scale
    attention.v_proj.weight[_HEAD * size, flag] = 1
    attention.o_proj.weight[:, _HEAD * size] = written
