"""Vectors as safetensors files, and what a tokenizer says of itself, without an engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save

from poolbench.errors import InputError
from poolbench_steerer.errors import VectorError
from poolbench_steerer.http.answers import TokenizerInfo
from poolbench_steerer.http.vectors import parse_safetensors


@pytest.mark.parametrize("shape", [[2_000_000, 0], [0], [2, 65_537], [65_537]])
def test_the_shape_of_a_tensor_is_checked_before_its_rows_are_made(shape):
    size = 4 * int(np.prod(shape))
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    with pytest.raises(VectorError, match="width of 1 to 65536"):
        parse_safetensors(len(header).to_bytes(8, "little") + header + bytes(size))


def test_too_many_rows_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="70000 vectors"):
        parse_safetensors(save({"a": torch.zeros(70_000, 1)}))


def test_a_model_with_several_chat_templates_has_an_answer():
    info = {"tokenizer_class": "T", "vocab_size": 2, "chat_template": {"default": "x", "tool_use": "y"}}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    assert TokenizerInfo(**info, **special).chat_template == {"default": "x", "tool_use": "y"}
