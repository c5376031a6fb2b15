"""What can be loaded and what is refused: folders as save_pretrained writes them, offloaded and foreign models."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from services.extractor.tests.conftest import TEXTS, make_decoder, passages_of
from tests.quantised import quantised_llama
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    ByT5Tokenizer,
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    PegasusConfig,
    PreTrainedConfig,
    SiglipVisionConfig,
    ViTConfig,
)

from poolbench.config import ModelRef, resolve_model
from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ModelError
from poolbench.pooling.batch import Request
from poolbench.settings import ExtractorSettings
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, encode
from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.forward.gradients import lacks_loss
from poolbench_extractor.models.decoder import Decoder, wrap_decoder
from poolbench_extractor.models.load import DecoderCache, describe, load_decoder

WANTED = [Request.of("A1_mean"), Request.of("S1_attention"), Request.of("A4_norm_weighted")]


def folder_of(config: PreTrainedConfig, decoder: Decoder, folder: Path) -> Path:
    """A folder with a configuration and a tokenizer, enough for what is refused before the weights are read."""
    config.save_pretrained(folder)
    decoder.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PegasusConfig(d_model=32), r"\(pegasus\) is an encoder-decoder model"),
        (ViTConfig(hidden_size=32), r"\(vit\) is not a language model"),
    ],
)
def test_models_of_another_kind_are_refused_before_their_weights(
    config: PreTrainedConfig, message: str, llama: Decoder, tmp_path: Path
) -> None:
    ref = resolve_model(str(folder_of(config, llama, tmp_path)))
    with pytest.raises(ModelError, match=message):
        load_decoder(ref)
    with pytest.raises(ModelError, match=message):
        describe(ref)


@pytest.mark.parametrize(("form", "allowed"), [("w4a16", 0.0), ("fp8", 0.0), ("w8a8", 0.05)])
def test_states_of_quantised_weights_are_those_of_the_numbers_that_they_stand_for(
    form: str, allowed: float, llama: Decoder, tmp_path: Path
) -> None:
    """W8A8 rounds the inputs of each layer too."""
    llama.tokenizer.save_pretrained(tmp_path)
    expected = quantised_llama(form, tmp_path)
    decoder = load_decoder(resolve_model(str(tmp_path), dtype="float32"))
    ids = torch.tensor([[5, 20, 30, 40, 50, 60]])
    with torch.inference_mode():
        found, wanted = (model(ids, output_hidden_states=True) for model in (decoder.model, expected))
    for state, right in zip(found.hidden_states, wanted.hidden_states, strict=True):
        assert (state - right).norm() <= allowed * right.norm()


@pytest.mark.parametrize("form", ["gptq", "awq"])
def test_quantised_weights_that_transformers_cannot_read_here_are_refused(
    form: str, llama: Decoder, tmp_path: Path
) -> None:
    llama.tokenizer.save_pretrained(tmp_path)
    quantised_llama(form, tmp_path)
    with pytest.raises(ModelError, match=f"{form.upper()} quantized model requires"):
        load_decoder(resolve_model(str(tmp_path)))


def test_an_encoder_with_a_language_model_head_is_refused(llama: Decoder) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(BertConfig(vocab_size=400, **shape))
    with pytest.raises(ModelError, match=r"BertLMHeadModel\) is not a causal decoder"):
        wrap_decoder(model, llama.tokenizer)
    causal = AutoModelForCausalLM.from_config(BertConfig(vocab_size=400, is_decoder=True, **shape))
    assert wrap_decoder(causal, llama.tokenizer).num_blocks == 2


def test_a_tokenizer_without_offsets_is_refused(saved_llama: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(saved_llama / name, tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no character offsets; a fast tokenizer"):
        load_decoder(resolve_model(str(tmp_path)))


def test_code_of_a_model_folder_does_not_run(llama: Decoder, tmp_path: Path) -> None:
    marker = tmp_path / "it_ran"
    folder = folder_of(LlamaConfig(), llama, tmp_path / "model")
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    ref = resolve_model(str(folder))
    for read in (load_decoder, describe):
        with pytest.raises(ModelError, match="POOLBENCH_TRUST_REMOTE_CODE=1"):
            read(ref)
    assert not marker.exists()


def test_weights_that_are_missing_are_one_line(llama: Decoder, tmp_path: Path) -> None:
    ref = resolve_model(str(folder_of(llama.model.config, llama, tmp_path)))
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_decoder(ref)
    assert "\n" not in str(caught.value)


def test_a_multimodal_model_is_its_text_decoder(llama: Decoder, tmp_path: Path) -> None:
    """The vision tower is as deep as the text decoder and as wide as nothing else."""
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = Gemma3TextConfig(vocab_size=400, head_dim=8, num_key_value_heads=2, max_position_embeddings=96, **shape)
    config = Gemma3Config(text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    llama.tokenizer.save_pretrained(tmp_path)
    ref = resolve_model(str(tmp_path))
    decoder = load_decoder(ref)
    assert type(decoder.model).__name__ == "Gemma3ForConditionalGeneration"
    assert all("vision" not in name for name, _ in decoder.backbone.named_modules())
    described = describe(ref)
    assert (described["num_blocks"], described["width"], described["window"]) == (2, 32, 96)
    num_parameters = sum(weights.numel() for weights in decoder.model.parameters())
    assert (described["architecture"], described["num_parameters"]) == ("decoder", num_parameters)
    assert (decoder.num_blocks, decoder.width, decoder.window) == (2, 32, 96)
    assert described["revision"] == decoder.revision and decoder.revision.startswith("local-")


def test_token_ids_that_the_model_does_not_know_fail_their_passage() -> None:
    config = LlamaConfig(
        vocab_size=280, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    known, unknown = encode(make_decoder(config), PassageTexts(["a", "b"], ["z!", "The committee met on Monday"]))
    assert known.error is None
    assert unknown.error is not None and "ids below 280" in str(unknown.error)


@pytest.mark.parametrize("offloaded", [("model.layers.1",), ("model.embed_tokens", "model.layers.0", "model.layers.3")])
def test_a_model_spread_by_a_device_map(
    offloaded: tuple[str, ...], llama: Decoder, saved_llama: Path, tmp_path: Path
) -> None:
    """Weights of some blocks lie on disk and come by when accelerate needs them, as with several devices."""
    pytest.importorskip("accelerate")
    places: dict[str, Any] = {f"model.layers.{index}": "cpu" for index in range(llama.num_blocks)}
    places |= dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= dict.fromkeys(offloaded, "disk")
    model = AutoModelForCausalLM.from_pretrained(
        saved_llama, dtype=torch.float32, device_map=places, offload_folder=tmp_path
    )
    spread = wrap_decoder(model, llama.tokenizer)
    assert "meta" in {parameter.device.type for parameter in model.parameters()}
    assert spread.device.type == "cpu" and spread.observed
    passages = passages_of(TEXTS)
    wanted = dict.fromkeys((1, 3), WANTED)
    expected, found = (extract(decoder, passages, wanted) for decoder in (llama, spread))
    for role, table in expected.items():
        vectors = (vector_matrix(tables[role]["vector"]) for tables in (found, expected))
        np.testing.assert_allclose(*vectors, rtol=1e-5, atol=1e-6, err_msg=role)
        assert found[role]["status"].to_pylist() == table["status"].to_pylist()


def variant(whole: Path, place: Path, weights: dict[str, torch.Tensor]) -> ModelRef:
    """A model folder with other weights, or other names for them."""
    shutil.copytree(whole, place)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return resolve_model(str(place))


def pooled(decoder: Decoder, texts: list[str], *strategies: str) -> dict[str, Any]:
    passages = passages_of(texts)
    return extract(decoder, passages, {1: [Request.of(name) for name in strategies]})


def test_weights_under_the_names_of_a_wrapper_are_read(saved_llama: Path, tmp_path: Path) -> None:
    weights = load_file(saved_llama / "model.safetensors")
    expected = vector_matrix(
        pooled(load_decoder(resolve_model(str(saved_llama))), TEXTS, "A1_mean")["A1_mean/1"]["vector"]
    )
    for prefix in ("module.", "_orig_mod.", "base_model.model.", "module._orig_mod."):
        wrapped = variant(saved_llama, tmp_path / prefix, {prefix + name: each for name, each in weights.items()})
        found = pooled(load_decoder(wrapped), TEXTS, "A1_mean")["A1_mean/1"]
        np.testing.assert_array_equal(vector_matrix(found["vector"]), expected)


def test_a_checkpoint_without_its_head_has_states_and_no_loss(saved_llama: Path, tmp_path: Path) -> None:
    weights = load_file(saved_llama / "model.safetensors")
    body = {name: each for name, each in weights.items() if name != "lm_head.weight"}
    assert len(body) < len(weights)
    whole = pooled(load_decoder(resolve_model(str(saved_llama))), TEXTS, "A1_mean", "S2_gradient")
    bare = {name.removeprefix("model."): each for name, each in body.items()}  # as AutoModel saves it
    for place, given in (("body", body), ("bare", bare)):
        decoder = load_decoder(variant(saved_llama, tmp_path / place, given))
        found = pooled(decoder, TEXTS, "A1_mean", "S2_gradient")
        assert found["A1_mean/1"].equals(whole["A1_mean/1"])
        assert set(whole["S2_gradient/1"]["status"].to_pylist()) >= {"ok"}
        assert "ok" not in found["S2_gradient/1"]["status"].to_pylist()
        assert "has no language-model head" in found["S2_gradient/1"]["reason"][0].as_py()
        assert lacks_loss(decoder) is not None


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("model.layers.1.self_attn.q_proj.weight", r"lacks weights, such as model\.layers\.1\.self_attn\.q_proj"),
        ("layernorm", r"lacks weights, such as model\.layers\.0\.input_layernorm"),
        ("embed_tokens", r"lacks weights, such as model\.embed_tokens"),
        ("model.norm", r"lacks weights, such as model\.norm"),
    ],
)
def test_a_checkpoint_that_lacks_weights_is_refused(
    lacks: str, message: str, saved_llama: Path, tmp_path: Path
) -> None:
    weights = load_file(saved_llama / "model.safetensors")
    ref = variant(saved_llama, tmp_path / "m", {name: each for name, each in weights.items() if lacks not in name})
    with pytest.raises(ModelError, match=message):
        load_decoder(ref)
    with pytest.raises(ModelError, match=message):
        PoolingEncoder(ref.source, layer=1)


def test_weights_of_blocks_that_would_be_left_out_are_refused(saved_llama: Path, tmp_path: Path) -> None:
    """The configuration has fewer blocks than the checkpoint, or its blocks have no such bias."""
    weights = load_file(saved_llama / "model.safetensors")
    fewer = variant(saved_llama, tmp_path / "fewer", weights)
    settings = json.loads((tmp_path / "fewer" / "config.json").read_text())
    (tmp_path / "fewer" / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 2}))
    with pytest.raises(ModelError, match=r"others that the model does not have, such as model\.layers\.2\."):
        load_decoder(resolve_model(fewer.source))
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}
    with pytest.raises(ModelError, match=r"such as model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_decoder(variant(saved_llama, tmp_path / "bias", weights | bias))
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "score.weight": torch.ones(2, 32)}
    assert load_decoder(variant(saved_llama, tmp_path / "old", weights | harmless)).has_head


def test_new_weights_in_the_same_folder_are_another_model(saved_llama: Path, tmp_path: Path) -> None:
    """Names and sizes are the same. A loaded model keeps its weights, though its file is written in place."""
    weights = load_file(saved_llama / "model.safetensors")
    ref = variant(saved_llama, tmp_path / "m", weights)
    file, cache = tmp_path / "m" / "model.safetensors", DecoderCache(ExtractorSettings(device="cpu"))
    with cache.using(ref) as decoder:
        before = pooled(decoder, TEXTS, "A1_mean")["A1_mean/1"]
        new = save({name: each * 2 for name, each in weights.items()}, metadata={"format": "pt"})
        with file.open("r+b") as content:
            content.write(new)
        assert pooled(decoder, TEXTS, "A1_mean")["A1_mean/1"].equals(before)
    with pytest.raises(ModelError, match="plan the run again"), cache.using(ref):
        pass
    again = resolve_model(ref.source)
    assert again.revision != ref.revision
    with cache.using(again) as decoder:
        assert not pooled(decoder, TEXTS, "A1_mean")["A1_mean/1"].equals(before)


def test_device_auto_spreads_over_what_there_is(saved_llama: Path) -> None:
    pytest.importorskip("accelerate")
    decoder = load_decoder(resolve_model(str(saved_llama)), ExtractorSettings(device="auto"))
    assert decoder.observed and decoder.num_blocks == 4


def test_device_auto_without_accelerate_says_so(saved_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name != "accelerate" and find(name, *rest))
    with pytest.raises(ModelError, match="accelerate"):
        load_decoder(resolve_model(str(saved_llama)), ExtractorSettings(device="auto"))
