"""Agreement with the pooling modes of sentence-transformers on the demo model's last block, padded on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from poolbench.config import resolve_model
from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder

MODES = {
    "cls": "P3_first_content",
    "max": "A2_max",
    "mean": "A1_mean",
    "mean_sqrt_len_tokens": "A10_mean_sqrt_len",
    "weightedmean": "A9_position_weighted",
    "lasttoken": "P1_last_token",
}


@pytest.fixture(scope="module")
def demo() -> Decoder:
    return load_decoder(resolve_model("demo"))


def last_block(decoder: Decoder, texts: list[str], side: str) -> tuple[Tensor, Tensor]:
    """States [B, T, D] after the last block, before the final norm, and the mask of real tokens [B, T].

    By the tokenizer's own padding and the model's whole forward pass: nothing of the extractor.
    """
    decoder.tokenizer.padding_side = side
    batch = decoder.tokenizer(texts, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    visible = batch["attention_mask"]
    positions = (visible.cumsum(1) - 1).clamp(min=0)
    kept: dict[str, Any] = {}
    last = decoder.model.model.layers[-1]
    handle = last.register_forward_hook(lambda _module, _inputs, output: kept.update(states=output))
    with torch.inference_mode():
        decoder.model(input_ids=batch["input_ids"], attention_mask=visible, position_ids=positions)
    handle.remove()
    states = kept["states"][0] if isinstance(kept["states"], tuple) else kept["states"]
    starts = visible.argmax(dim=1)
    real = visible.clone()
    real[torch.arange(len(texts)), starts] = 0  # the BOS
    return states, real


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("mode", MODES)
def test_the_six_modes(demo: Decoder, texts: list[str], mode: str, side: str) -> None:
    states_BTD, real_BT = last_block(demo, texts, side)
    pooling = Pooling(states_BTD.shape[-1], pooling_mode=mode)
    oracle = pooling({"token_embeddings": states_BTD, "attention_mask": real_BT})["sentence_embedding"].numpy()
    ours = PoolingEncoder(demo, MODES[mode], -1).encode(texts)
    assert np.abs(ours - oracle).max() <= 1e-5 * np.abs(oracle).max()


def test_the_first_token_with_its_bos(demo: Decoder, texts: list[str]) -> None:
    states_BTD, _ = last_block(demo, texts, "right")
    pooling = Pooling(states_BTD.shape[-1], pooling_mode="cls")
    oracle = pooling({"token_embeddings": states_BTD})["sentence_embedding"].numpy()
    ours = PoolingEncoder(demo, "P2_first_token", -1).encode(texts)
    assert np.abs(ours - oracle).max() <= 1e-5 * np.abs(oracle).max()
