"""Encoders of text are read like decoders where nothing needs causality: BERT and its kind, and the half of T5."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForTextEncoding,
    AutoTokenizer,
    BertConfig,
    DistilBertConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
)

from poolbench.config import ModelRef
from poolbench.model_folders.bases import find_base
from poolbench.pooling.batch import Request
from poolbench.statuses import Status
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import describe, load_decoder

TEXTS = ["The ferry waited at the pier until noon, and then it left.", "She sat down.", "An old, wooden chair"]
PASSAGES = PassageTexts([str(number) for number in range(3)], TEXTS)
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 32}
CONFIGS = [
    BertConfig(vocab_size=30522, **SMALL),
    RobertaConfig(vocab_size=30522, max_position_embeddings=64, **SMALL),
    DistilBertConfig(vocab_size=30522, n_layers=2, n_heads=4, dim=32, hidden_dim=32),
    T5Config(vocab_size=30522, d_model=32, num_layers=2, num_decoder_layers=1, d_ff=64, num_heads=2, d_kv=16),
]


@pytest.fixture(params=CONFIGS, ids=lambda config: config.model_type)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a small encoder with random weights and MiniLM's tokenizer."""
    config: PreTrainedConfig = request.param
    torch.manual_seed(0)
    AutoModelForTextEncoding.from_config(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(find_base("minilm").folder).save_pretrained(tmp_path)
    return tmp_path


def _load(folder: Path) -> Decoder:
    return load_decoder(ModelRef("encoder", str(folder)))


def _require_states_of_transformers(folder: Path) -> None:
    """Compare each layer with `hidden_states` of a text alone: padding of a batch must not be seen."""
    encoder = _load(folder)
    model, tokenizer = AutoModelForTextEncoding.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    layers = {-1: 0, 0: 1, encoder.num_blocks: -1}  # the last of T5's `hidden_states` is normalised
    found = extract(encoder, PASSAGES, {layer: [Request.of("A11_mean_all")] for layer in layers})
    for row, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True)
        for layer, index in layers.items():
            expected = states.last_hidden_state if index == -1 else states.hidden_states[index]
            own = found[f"A11_mean_all/{layer}"]["vector"][row].as_py()
            assert np.allclose(own, expected[0].mean(0).numpy(), atol=1e-5), (layer, row)


def test_states_are_those_of_transformers(folder: Path) -> None:
    assert _load(folder).num_blocks == 2 and not _load(folder).causal
    _require_states_of_transformers(folder)


def test_the_installed_minilm_is_read() -> None:
    _require_states_of_transformers(find_base("minilm").folder)
    shape = describe(ModelRef("minilm", str(find_base("minilm").folder)))
    assert (shape["num_blocks"], shape["width"], shape["window"]) == (6, 384, 512)


def test_strategies_that_need_causality_are_not_implemented(folder: Path) -> None:
    names = ["S1_attention", "S2_gradient", "G1_input_x_gradient", "A1_mean", "W2_last_k"]
    found = extract(_load(folder), PASSAGES, {1: [Request.of(name) for name in names]})
    statuses = {name: set(found[f"{name}/1"]["status"].to_pylist()) for name in names}
    assert [statuses[name] for name in names[:3]] == [{Status.NOT_IMPLEMENTED}] * 3
    assert [statuses[name] for name in names[3:]] == [{Status.OK}] * 2
    assert "this is an encoder" in found["S1_attention/1"]["reason"][0].as_py()


def test_a_text_longer_than_the_window_fails_alone(tmp_path: Path) -> None:
    AutoModelForTextEncoding.from_config(CONFIGS[1]).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(find_base("minilm").folder).save_pretrained(tmp_path)
    encoder = _load(tmp_path)
    assert encoder.window == 62  # RoBERTa counts positions from 2
    table = extract(encoder, PassageTexts(["long", "short"], ["word " * 61, "word"]), {0: [Request.of("A1_mean")]})
    assert table["A1_mean/0"]["status"].to_pylist() == [Status.FAILED, Status.OK]
    fits = extract(encoder, PassageTexts(["fits"], ["word " * 60]), {0: [Request.of("A1_mean")]})
    assert fits["A1_mean/0"]["status"].to_pylist() == [Status.OK]
