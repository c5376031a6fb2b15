"""Encoders of text are read like decoders where nothing needs causality: BERT and its kind, halves of T5 and BART."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    AutoTokenizer,
    BartConfig,
    BertConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
    XLMRobertaConfig,
)

from poolbench.config import ModelRef
from poolbench.errors import ModelError
from poolbench.model_folders.bases import find_base
from poolbench.pooling.batch import Request
from poolbench.statuses import Status
from poolbench.steps.extractor import RandomWeights
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, encode
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import describe, load_decoder

TEXTS = ["The ferry waited at the pier until noon, and then it left.", "She sat down.", "An old, wooden chair"]
PASSAGES = PassageTexts([str(number) for number in range(3)], TEXTS)
VOCABULARY = {"vocab_size": 30522}
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 32, **VOCABULARY}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, **VOCABULARY}  # fmt: skip
DISENTANGLED = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
#: The encoders of docs/models.md.
CONFIGS: dict[str, PreTrainedConfig] = {
    "BERT": BertConfig(**SMALL),
    "RoBERTa": RobertaConfig(max_position_embeddings=64, **SMALL),
    "XLM-R": XLMRobertaConfig(max_position_embeddings=64, **SMALL),
    "DistilBERT": DistilBertConfig(n_layers=2, n_heads=4, dim=32, hidden_dim=32, **VOCABULARY),
    "ELECTRA": ElectraConfig(embedding_size=16, **SMALL),
    "DeBERTa": DebertaConfig(**DISENTANGLED, **SMALL),
    "DeBERTa-v2": DebertaV2Config(position_buckets=8, norm_rel_ebd="layer_norm", **DISENTANGLED, **SMALL),
    "ALBERT": AlbertConfig(embedding_size=16, num_hidden_groups=1, **SMALL),
    "T5, encoder": T5Config(
        d_model=32, num_layers=2, num_decoder_layers=1, d_ff=64, num_heads=2, d_kv=16, **VOCABULARY
    ),
    "BART, encoder": BartConfig(**BART),
}


def _class_of(config: PreTrainedConfig) -> Any:
    return AutoModel if config.model_type == "bart" else AutoModelForTextEncoding


def _saved(config: PreTrainedConfig, folder: Path) -> Path:
    """Return a folder with a small encoder with random weights and MiniLM's tokenizer."""
    torch.manual_seed(0)
    _class_of(config).from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_base("minilm").folder).save_pretrained(folder)
    return folder


def _load(folder: Path) -> Decoder:
    return load_decoder(ModelRef("encoder", str(folder)))


def _gap_to_transformers(folder: Path) -> float:
    """Return the largest relative difference of a token's states from `hidden_states` of its text alone.

    The texts are read in one batch, so that padding would show. The embedding, all blocks but the last, and the states
    after the last norm are compared: the last of T5's `hidden_states` is normalised.
    """
    encoder = _load(folder)
    config = AutoConfig.from_pretrained(folder)
    model = _class_of(config).from_pretrained(folder).eval()
    model = model.get_encoder() if config.model_type == "bart" else model
    passages = encode(encoder, PASSAGES)
    layers = [*range(-1, encoder.num_blocks - 1), encoder.num_blocks]
    captured = capture(encoder, passages, layers)
    gap = 0.0
    for row, passage in enumerate(passages):
        with torch.no_grad():
            expected = model(input_ids=torch.from_numpy(passage.token_ids)[None], output_hidden_states=True)
        for layer in layers:
            is_last = layer == encoder.num_blocks
            states_TD = (expected.last_hidden_state if is_last else expected.hidden_states[layer + 1])[0]
            difference_T = (captured.states_of(layer)[row] - states_TD).norm(dim=-1)
            gap = max(gap, float((difference_T / states_TD.norm(dim=-1)).max()))
    return gap


@pytest.mark.parametrize("architecture", CONFIGS)
def test_states_are_those_of_transformers(architecture: str, tmp_path: Path, models_table: Callable[..., None]) -> None:
    folder = _saved(CONFIGS[architecture], tmp_path)
    encoder, described = _load(folder), describe(ModelRef("x", str(folder)))
    assert (encoder.num_blocks, encoder.width, encoder.causal) == (2, 32, False)
    assert (described["num_blocks"], described["width"]) == (2, 32)
    gap = _gap_to_transformers(folder)
    assert gap < 1e-5
    models_table(architecture, False, {"encoder_states": gap})


def test_blocks_that_share_weights_are_told_apart_by_their_turn(tmp_path: Path) -> None:
    """Five blocks of two groups, each of two layers, against a loop over the model's parts."""
    config = AlbertConfig(
        **{**SMALL, "num_hidden_layers": 5}, embedding_size=16, num_hidden_groups=2, inner_group_num=2
    )
    encoder = _load(_saved(config, tmp_path))
    assert encoder.num_blocks == 5 and len({id(block) for block in encoder.blocks}) == 2
    (passage,) = encode(encoder, PassageTexts(["0"], TEXTS[:1]))
    layers = range(-1, 6)
    for _ in range(2):  # the turns of one pass do not shift those of the next
        captured = capture(encoder, [passage], list(layers))
    with torch.no_grad():
        parts = encoder.model.encoder
        states_BTD = encoder.model.embeddings(torch.from_numpy(passage.token_ids)[None])
        by_layer = [parts.embedding_hidden_mapping_in(states_BTD)]
        for group in (0, 0, 0, 1, 1):
            states_BTD = by_layer[-1]
            for layer in parts.albert_layer_groups[group].albert_layers:
                states_BTD = layer(states_BTD)
            by_layer.append(states_BTD)
    for layer, expected in zip(layers, [*by_layer, by_layer[-1]], strict=True):
        torch.testing.assert_close(captured.states_of(layer)[0], expected[0])
    (alone,) = capture(encoder, [passage], [2]).states_of(2)
    torch.testing.assert_close(alone, by_layer[3][0])


def test_the_encoder_of_a_model_with_a_head_is_the_same(tmp_path: Path) -> None:
    """Checkpoints of BART have a language-model head, whose names begin with `model.`."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(BartConfig(**BART))
    folder = _saved(BartConfig(**BART), tmp_path)
    model.save_pretrained(folder)
    assert _gap_to_transformers(folder) < 1e-5
    first = _load(folder).model.layers[0].fc1.weight
    torch.testing.assert_close(first, model.model.encoder.layers[0].fc1.weight, rtol=0, atol=0)
    drawn = load_decoder(ModelRef("encoder", str(folder)), change=RandomWeights(seed=1)).model.layers[0].fc1.weight
    assert not torch.equal(first, drawn)


@pytest.mark.parametrize(
    ("name", "lost"), [("ALBERT", "albert_layer_groups.0."), ("BART, encoder", "encoder.layers.1.")]
)
def test_an_encoder_without_some_weights_is_refused(name: str, lost: str, tmp_path: Path) -> None:
    file = _saved(CONFIGS[name], tmp_path) / "model.safetensors"
    save_file({key: value for key, value in load_file(file).items() if lost not in key}, file, {"format": "pt"})
    with pytest.raises(ModelError, match="lacks weights, such as encoder"):
        _load(tmp_path)


def test_the_installed_minilm_is_read() -> None:
    assert _gap_to_transformers(find_base("minilm").folder) < 1e-5
    shape = describe(ModelRef("minilm", str(find_base("minilm").folder)))
    assert (shape["num_blocks"], shape["width"], shape["window"]) == (6, 384, 512)
    assert (shape["architecture"], shape["num_parameters"]) == ("encoder", 22_713_216)


def test_strategies_that_need_causality_are_not_implemented(tmp_path: Path) -> None:
    names = ["S1_attention", "S2_gradient", "G1_input_x_gradient", "A1_mean", "W2_last_k"]
    found = extract(_load(_saved(CONFIGS["BERT"], tmp_path)), PASSAGES, {1: [Request.of(name) for name in names]})
    statuses = {name: set(found[f"{name}/1"]["status"].to_pylist()) for name in names}
    assert [statuses[name] for name in names[:3]] == [{Status.NOT_IMPLEMENTED}] * 3
    assert [statuses[name] for name in names[3:]] == [{Status.OK}] * 2
    assert "this is an encoder" in found["S1_attention/1"]["reason"][0].as_py()


def test_a_text_longer_than_the_window_fails_alone(tmp_path: Path) -> None:
    encoder = _load(_saved(CONFIGS["RoBERTa"], tmp_path))
    assert encoder.window == 62  # RoBERTa counts positions from 2
    table = extract(encoder, PassageTexts(["long", "short"], ["word " * 61, "word"]), {0: [Request.of("A1_mean")]})
    assert table["A1_mean/0"]["status"].to_pylist() == [Status.FAILED, Status.OK]
    fits = extract(encoder, PassageTexts(["fits"], ["word " * 60]), {0: [Request.of("A1_mean")]})
    assert fits["A1_mean/0"]["status"].to_pylist() == [Status.OK]
