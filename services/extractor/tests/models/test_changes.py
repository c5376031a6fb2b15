"""Fine-tunes of a model: adapters, checkpoints, random changes of equal norm; layers beside the blocks; spans."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from poolbench.config import asset_path, change_revision, resolve_model
from poolbench.errors import ModelError
from poolbench.pooling.batch import Request
from poolbench.statuses import Status
from poolbench.steps.extractor import ChangeParams, RandomWeights
from poolbench_extractor import core
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.models.changes import shuffled
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder

TEXTS = PassageTexts(["a", "b"], ["The old ferry waited at the pier.", "She bought a wooden chair."])
DEMO = resolve_model("demo")


def _base() -> Any:
    return AutoModelForCausalLM.from_pretrained(asset_path("demo_lm"), dtype=torch.float32)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adapter of two modules of the demo model with random weights."""
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(0)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(_base(), settings)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, adapter: Path) -> Path:
    """Return the demo model with the adapter merged into it by PEFT, as a whole checkpoint."""
    from peft import PeftModel

    folder = tmp_path_factory.mktemp("checkpoint")
    PeftModel.from_pretrained(_base(), str(adapter)).merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(asset_path("demo_lm")).save_pretrained(folder)
    return folder


def _change(folder: Path, seed: int | None = None) -> ChangeParams:
    return ChangeParams(source=str(folder), revision=change_revision(folder), random_seed=seed)


def _vectors(decoder: Decoder, layer: int, passages: PassageTexts = TEXTS, strategy: str = "A1_mean") -> np.ndarray:
    (table,) = extract(decoder, passages, {layer: [Request.of(strategy)]}).values()
    return np.array(table["vector"].to_pylist())


def test_an_adapter_and_its_merged_checkpoint_give_the_same_states(
    demo: Decoder, adapter: Path, checkpoint: Path
) -> None:
    by_adapter, whole = (load_decoder(DEMO, change=_change(folder)) for folder in (adapter, checkpoint))
    for layer in range(demo.num_blocks + 1):
        assert np.allclose(_vectors(by_adapter, layer), _vectors(whole, layer), atol=1e-5)
    assert not np.allclose(_vectors(by_adapter, 5), _vectors(demo, 5), atol=1e-2)


def test_a_random_change_keeps_the_norm_and_the_singular_values_of_every_matrix(adapter: Path) -> None:
    base = dict(_base().named_parameters())
    deltas = []
    for seed in (None, 0, 0, 1):
        changed = dict(load_decoder(DEMO, change=_change(adapter, seed)).model.named_parameters())
        moved = {name: weight - base[name] for name, weight in changed.items()}
        deltas.append({name: delta for name, delta in moved.items() if delta.abs().max() > 1e-6})
    trained, first, again, second = deltas
    assert trained.keys() == first.keys() and len(trained) == 12
    for name, delta in trained.items():
        assert torch.allclose(torch.linalg.svdvals(delta), torch.linalg.svdvals(first[name]), atol=1e-4)
        assert torch.equal(first[name], again[name]) and not torch.allclose(first[name], second[name], atol=1e-3)


@pytest.mark.parametrize("start", ["pissa", "olora"])
@pytest.mark.parametrize("trained", [True, False])
def test_the_change_of_an_adapter_is_that_of_the_untouched_base(start: str, trained: bool, tmp_path: Path) -> None:
    """PiSSA and OLoRA begin with a part of the base: before training they change nothing."""
    from peft import PeftModel

    torch.manual_seed(0)
    settings = LoraConfig(
        r=4, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=start
    )
    model = get_peft_model(_base(), settings)
    if trained:
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.data += 0.02 * torch.randn_like(weight)
    model.save_pretrained(tmp_path)
    base = dict(_base().named_parameters())
    merged = PeftModel.from_pretrained(_base(), str(tmp_path)).merge_and_unload()
    expected = {name: weight - base[name] for name, weight in merged.named_parameters()}
    size = sum(float(delta.square().sum()) for delta in expected.values()) ** 0.5
    assert (size > 1) is trained
    for seed in (None, 0):
        changed = dict(load_decoder(DEMO, change=_change(tmp_path, seed)).model.named_parameters())
        moved = {name: weight - base[name] for name, weight in changed.items()}
        assert sum(float(delta.square().sum()) for delta in moved.values()) ** 0.5 == pytest.approx(size, abs=1e-4)
        for name, delta in moved.items():
            assert (
                torch.allclose(torch.linalg.matrix_norm(delta), torch.linalg.matrix_norm(expected[name]), atol=1e-5)
                if delta.ndim == 2
                else not delta.any()
            )
            assert seed is not None or torch.allclose(delta, expected[name], atol=1e-6)


def test_shuffling_a_vector_permutes_it_up_to_signs() -> None:
    vector = torch.arange(1.0, 9.0)
    found = shuffled(vector, 3, "norm.weight")
    assert sorted(found.abs().tolist()) == vector.tolist() and found.tolist() != vector.tolist()


def test_the_named_layers_are_those_of_transformers(demo: Decoder) -> None:
    model, tokenizer = _base(), AutoTokenizer.from_pretrained(asset_path("demo_lm"))
    for index, text in enumerate(TEXTS.texts):
        ids = tokenizer(text, return_tensors="pt")
        real = ~torch.isin(ids["input_ids"][0], torch.tensor(tokenizer.all_special_ids))
        with torch.no_grad():
            states = model(**ids, output_hidden_states=True).hidden_states
        for layer, expected in ((-1, states[0]), (demo.num_blocks, states[-1]), (2, states[3])):
            assert np.allclose(_vectors(demo, layer)[index], expected[0][real].mean(0).numpy(), atol=1e-5)


def test_layers_beside_the_blocks_have_no_attention_and_no_gradients(demo: Decoder) -> None:
    for strategy in ("S1_attention", "S2_gradient"):
        wanted = {layer: [Request.of(strategy), Request.of("A1_mean")] for layer in (-1, 3, demo.num_blocks)}
        tables = extract(demo, TEXTS, wanted)
        statuses = {layer: set(tables[f"{strategy}/{layer}"]["status"].to_pylist()) for layer in wanted}
        assert statuses == {-1: {Status.NOT_IMPLEMENTED}, 3: {Status.OK}, demo.num_blocks: {Status.NOT_IMPLEMENTED}}
        assert all(set(tables[f"A1_mean/{layer}"]["status"].to_pylist()) == {Status.OK} for layer in wanted)


def test_only_the_tokens_of_a_span_are_pooled(demo: Decoder) -> None:
    text = "She bought a wooden chair."
    start = text.index("chair")
    spans = PassageTexts(["x"], [text], spans=[(start, start + 5)])
    ids = demo.tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
    own = [i for i, (s, e) in enumerate(ids.pop("offset_mapping")[0].tolist()) if s < start + 5 and e > start]
    with torch.no_grad():
        states = demo.model(**{k: v for k, v in ids.items() if k == "input_ids"}, output_hidden_states=True)
    assert np.allclose(_vectors(demo, 6, spans)[0], states.hidden_states[-1][0][own].mean(0).numpy(), atol=1e-5)


def test_spans_of_one_text_share_its_forward_pass_and_its_signals(
    demo: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention, gradients and sinks are those of the whole text, so weights of two spans are parts of one another."""
    text = "She bought a wooden chair and an old lamp."
    words = [
        (text.index(word), text.index(word) + len(word)) for word in ("chair", "lamp", "wooden chair and an old lamp")
    ]
    passages = PassageTexts(["chair", "lamp", "both", "all"], [text] * 4, spans=[*words, (0, len(text))])
    seen = list[int]()
    original = core.capture
    monkeypatch.setattr(
        core, "capture", lambda d, batch, *a, **k: (seen.append(len(batch)), original(d, batch, *a, **k))[1]
    )
    wanted = [Request.of(name) for name in ("A1_mean", "S1_attention", "S2_gradient", "A2_max")]
    tables = extract(demo, passages, {3: wanted})
    assert seen == [1]
    whole = extract(demo, PassageTexts(["all"], [text]), {3: wanted})
    for request in wanted:
        name = f"{request.id}/3"
        assert set(tables[name]["status"].to_pylist()) == {Status.OK}
        assert np.allclose(tables[name]["vector"][3].as_py(), whole[name]["vector"][0].as_py(), atol=1e-6)
    alone = {
        word: extract(demo, PassageTexts([word], [text], spans=[span]), {3: wanted})
        for word, span in zip(passages.ids, passages.spans, strict=True)
    }
    for row, word in enumerate(passages.ids):
        for name, table in alone[word].items():
            assert np.allclose(table["vector"][0].as_py(), tables[name]["vector"][row].as_py(), atol=1e-6), (word, name)


@pytest.mark.parametrize("span", [(9, 9), (100, 105)])
def test_a_span_without_tokens_fails_alone(demo: Decoder, span: tuple[int, int]) -> None:
    passages = PassageTexts(["x", "y"], list(TEXTS.texts), spans=[span, (0, 3)])
    (table,) = extract(demo, passages, {2: [Request.of("A1_mean")]}).values()
    assert table["status"].to_pylist() == [Status.FAILED, Status.OK]
    assert "none in its span" in table["reason"][0].as_py()


def test_changes_that_do_not_fit_are_refused_with_a_reason(adapter: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is at revision .*plan the run again"):
        load_decoder(DEMO, change=ChangeParams(source=str(adapter), revision="sha256-0"))
    with pytest.raises(ModelError, match="is not a fine-tune"):
        change_revision(tmp_path)
    with pytest.raises(ModelError, match=r"does not have; it belongs to another one|does not fit this model"):
        load_decoder(resolve_model("planted"), change=_change(adapter))
    with pytest.raises(ModelError, match=r"has num_hidden_layers|has hidden_size"):
        load_decoder(resolve_model("planted"), change=_change(checkpoint))
    other = tmp_path / "other"
    other.mkdir()
    for file in adapter.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    settings = json.loads((other / "adapter_config.json").read_text())
    for more, what in (
        ({"use_dora": True}, "use_dora"),
        ({"alora_invocation_tokens": [5, 6]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 4], [2, 6]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights 'pissa_niter_4'"),
        ({"init_lora_weights": "corda"}, "init_lora_weights 'corda'"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights 'lora_ga'"),
    ):
        (other / "adapter_config.json").write_text(json.dumps({**settings, **more}))
        with pytest.raises(ModelError, match=f"has {what}; only plain LoRA, PiSSA and OLoRA are read"):
            load_decoder(DEMO, change=_change(other))


def test_an_adapter_of_the_embedding_is_refused(tmp_path: Path) -> None:
    """Its part of the change would be left out without a word."""
    settings = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "embed_tokens"])
    get_peft_model(_base(), settings).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"embed_tokens.*; only LoRA weights of linear layers are read: merge it"):
        load_decoder(DEMO, change=_change(tmp_path))


def test_a_checkpoint_with_another_tokenizer_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = sorted(vocabulary)[50:52]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer.get_vocab() != AutoTokenizer.from_pretrained(tmp_path).get_vocab()
    with pytest.raises(ModelError, match="another tokenizer"):
        load_decoder(DEMO, change=_change(tmp_path))


def test_a_checkpoint_that_lacks_weights_or_differs_in_its_heads_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.layers.3.mlp.down_proj.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks weights, such as model\.layers\.3\.mlp\.down_proj\.weight"):
        load_decoder(DEMO, change=_change(tmp_path))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "num_key_value_heads": 1}))
    with pytest.raises(ModelError, match="has num_key_value_heads 1"):
        load_decoder(DEMO, change=_change(tmp_path))


def test_random_weights_are_those_of_an_untrained_model_and_draw_from_no_generator_of_others() -> None:
    base, config = dict(_base().named_parameters()), AutoConfig.from_pretrained(asset_path("demo_lm"))
    torch.manual_seed(3)
    fresh = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    first, again, other = (
        dict(load_decoder(DEMO, change=RandomWeights(seed=n)).model.named_parameters()) for n in (3, 3, 4)
    )
    matrices = [name for name, weight in base.items() if weight.ndim > 1]
    assert any("embed" in name for name in matrices)
    for name, weight in first.items():
        assert torch.equal(weight, fresh[name]) and torch.equal(weight, again[name])
        assert name not in matrices or not (torch.equal(weight, base[name]) or torch.equal(weight, other[name]))
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    load_decoder(DEMO, change=RandomWeights(seed=0))
    assert torch.equal(torch.rand(2), expected)
