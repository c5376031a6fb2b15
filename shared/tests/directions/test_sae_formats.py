"""Formats of sparse autoencoders, against the encoders of their authors, written down again from their definitions."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from poolbench.directions import SparseAutoencoder
from poolbench.directions.sae_files import read_folder
from poolbench.directions.sae_formats.converted import layer_of
from poolbench.errors import InputError

WIDTH, FEATURES = 6, 11
X = np.random.default_rng(7).normal(size=(40, WIDTH)).astype(np.float32) * 3


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def folder_of(place: Path, **files: bytes | dict[str, Any]) -> Path:
    """Write files, whose names have `__` for a dot and `___` for a slash."""
    for name, content in files.items():
        file = place / name.replace("___", "/").replace("__", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return place


def same(found: SparseAutoencoder, features: np.ndarray, decoded: np.ndarray) -> None:
    assert (features != 0).any() and (features == 0).any()
    np.testing.assert_allclose(found.encode(X), features, atol=1e-4)
    np.testing.assert_allclose(found.decode(found.encode(X)), decoded, atol=1e-4)


def relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0)


# Gemma Scope


def gemma_tensors() -> dict[str, np.ndarray]:
    return {
        "W_enc": numbers(WIDTH, FEATURES),
        "W_dec": numbers(FEATURES, WIDTH),
        "b_enc": numbers(FEATURES),
        "b_dec": numbers(WIDTH),
        "threshold": np.abs(numbers(FEATURES, seed=1)),
    }


def gemma_folder(place: Path, tensors: dict[str, np.ndarray] | None = None) -> Path:
    place.mkdir(parents=True)
    np.savez(place / "params.npz", **(gemma_tensors() if tensors is None else tensors))  # type: ignore[arg-type]
    return place


def test_gemma_scope(tmp_path: Path) -> None:
    place = gemma_folder(tmp_path / "gemma-scope-2b-pt-res" / "layer_20" / "width_16k" / "average_l0_71")
    t = gemma_tensors()
    z = X @ t["W_enc"] + t["b_enc"]
    features = np.where(z > t["threshold"], relu(z), 0)
    found, files = SparseAutoencoder.from_folder(place)
    same(found, features, features @ t["W_dec"] + t["b_dec"])
    assert (found.architecture, found.layer) == ("jumprelu", 20)
    assert SparseAutoencoder.from_folder(place / "params.npz")[1] == files == read_folder(place)


def test_gemma_scope_in_a_plain_folder_has_no_layer_and_may_be_in_half_precision(tmp_path: Path) -> None:
    halves = {name.replace("W_", "w_"): tensor.astype(np.float16) for name, tensor in gemma_tensors().items()}
    found, _ = SparseAutoencoder.from_folder(gemma_folder(tmp_path / "sae", halves))
    assert found.layer is None and found.w_enc.dtype == np.float32


@pytest.mark.parametrize(
    ("folder", "site"),
    [
        ("gemma-scope-2b-pt-mlp/layer_3", "mlp"),
        ("models--google--gemma-scope-9b-pt-att/snapshots/a/layer_3", "att"),
        ("gemma-scope-2b-pt-transcoders/layer_3", "transcoders"),
        ("gemma-scope-2b-pt-res/embedding/width_4k", "embedding"),
    ],
)
def test_other_sites_of_gemma_scope_are_refused_by_name(tmp_path: Path, folder: str, site: str) -> None:
    with pytest.raises(InputError, match=rf"{folder}.*is of the site {site}; only the residual stream"):
        read_folder(gemma_folder(tmp_path / folder))


# Llama Scope

NORM = 1.7
LLAMA = {
    "hook_point_in": "blocks.8.hook_resid_post",
    "hook_point_out": "blocks.8.hook_resid_post",
    "act_fn": "jumprelu",
    "jump_relu_threshold": 0.4,
    "norm_activation": "dataset-wise",
    "dataset_average_activation_norm": {"in": NORM, "out": NORM},
    "sparsity_include_decoder_norm": True,
    "use_decoder_bias": True,
    "apply_decoder_bias_to_pre_encoder": False,
    "top_k": 3,
}


def llama_tensors() -> dict[str, np.ndarray]:
    return {
        "encoder.weight": numbers(FEATURES, WIDTH),
        "encoder.bias": numbers(FEATURES),
        "decoder.weight": numbers(WIDTH, FEATURES),
        "decoder.bias": numbers(WIDTH),
    }


def llama_folder(place: Path, weights: str = "checkpoints___final__safetensors", **settings: Any) -> Path:
    return folder_of(place, **{"hyperparams__json": LLAMA | settings, weights: save(llama_tensors())})


def llama_features(*, weighed: bool = True, subtracts: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Pre-activations of x at the scale of training, brought to the scale of the data, and the decoder's rows."""
    t = llama_tensors()
    factor = math.sqrt(WIDTH) / NORM
    scaled = X * factor - (t["decoder.bias"] if subtracts else 0)
    norms = np.linalg.norm(t["decoder.weight"], axis=0) if weighed else np.ones(FEATURES)
    z = (scaled @ t["encoder.weight"].T + t["encoder.bias"]) * norms / factor
    return z, (t["decoder.weight"] / norms).T


@pytest.mark.parametrize("weights", ["checkpoints___final__safetensors", "sae_weights__safetensors"])
def test_llama_scope(tmp_path: Path, weights: str) -> None:
    place = llama_folder(tmp_path, weights)
    z, rows = llama_features()
    features = np.where(z > 0.4, z, 0)
    found, files = SparseAutoencoder.from_folder(place)
    # The reconstruction of training is at its scale; divided by the factor it is at that of the data.
    same(found, features, features @ rows + llama_tensors()["decoder.bias"] * NORM / math.sqrt(WIDTH))
    np.testing.assert_allclose(np.linalg.norm(found.w_dec, axis=1), 1, atol=1e-6)
    assert (found.architecture, found.layer) == ("jumprelu", 8)
    for named in ("hyperparams.json", weights.replace("___", "/").replace("__", ".")):
        assert read_folder(place / named) == files


def test_variants_of_llama_scope(tmp_path: Path) -> None:
    def features(name: str, **settings: Any) -> np.ndarray:
        return SparseAutoencoder.from_folder(llama_folder(tmp_path / name, **settings))[0].encode(X)

    z, _ = llama_features(weighed=False)
    plain = features("plain", sparsity_include_decoder_norm=False)
    np.testing.assert_allclose(plain, np.where(z > 0.4, z, 0), atol=1e-4)
    z, _ = llama_features(subtracts=True)
    bias = features("bias", apply_decoder_bias_to_pre_encoder=True)
    np.testing.assert_allclose(bias, np.where(z > 0.4, z, 0), atol=1e-4)
    z, _ = llama_features()
    np.testing.assert_allclose(features("topk", act_fn="topk"), np.where(z > 0.4, z, 0), atol=1e-4)
    chosen = features("k", act_fn="topk", jump_relu_threshold=0)
    np.testing.assert_allclose(chosen, np.where(z >= np.sort(z)[:, -3:-2], relu(z), 0), atol=1e-4)
    np.testing.assert_allclose(features("relu", act_fn="relu"), relu(z), atol=1e-4)
    folded = features("folded", norm_activation="inference", sparsity_include_decoder_norm=False, act_fn="relu")
    t = llama_tensors()
    np.testing.assert_allclose(folded, relu(X @ t["encoder.weight"].T + t["encoder.bias"]), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hook_point_in": "blocks.8.hook_mlp_out"}, "reads 'blocks.8.hook_mlp_out'; only the residual stream"),
        ({"hook_point_in": "blocks.8.ln2.hook_normalized"}, "only the residual stream"),
        ({"hook_point_out": "blocks.8.hook_mlp_out"}, "writes 'blocks.8.hook_mlp_out'; both must be one site"),
        ({"norm_activation": "token-wise"}, "'token-wise' scales each vector on its own"),
        ({"dataset_average_activation_norm": None}, "dataset_average_activation_norm is None"),
        ({"dataset_average_activation_norm": {"in": 1, "out": 2}}, "the same norm for in and out"),
        ({"act_fn": "tanh"}, "act_fn 'tanh'"),
        ({"act_fn": "jumprelu", "jump_relu_threshold": None}, "jump_relu_threshold None is not read"),
        ({"use_glu_encoder": True}, "use_glu_encoder"),
    ],
)
def test_what_cannot_be_folded_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_folder(llama_folder(tmp_path, **settings))
    assert str(tmp_path) in str(caught.value)


# dictionary_learning


def linear() -> dict[str, np.ndarray]:
    return {
        "encoder.weight": numbers(FEATURES, WIDTH),
        "encoder.bias": numbers(FEATURES),
        "decoder.weight": numbers(WIDTH, FEATURES),
    }


def dictionary_folder(place: Path, name: str, tensors: dict[str, Any], **trainer: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    torch.save({key: torch.as_tensor(value) for key, value in tensors.items()}, place / "ae.pt")
    settings = {"dict_class": name, "layer": 4, "submodule_name": "resid_post_layer_4", **trainer}
    return folder_of(place, config__json={"trainer": settings, "buffer": {}})


def z_of(tensors: dict[str, Any], bias: Any = 0.0) -> np.ndarray:
    return np.asarray((X - bias) @ tensors["encoder.weight"].T + tensors["encoder.bias"])


def check(place: Path, features: np.ndarray, decoded: np.ndarray, architecture: str) -> None:
    found, files = SparseAutoencoder.from_folder(place)
    same(found, features, decoded)
    assert (found.architecture, found.layer) == (architecture, 4)
    assert read_folder(place / "ae.pt") == files


def test_relu_classes(tmp_path: Path) -> None:
    t = {**linear(), "bias": numbers(WIDTH)}
    features = relu(z_of(t, t["bias"]))
    place = dictionary_folder(tmp_path / "a", "AutoEncoder", t)
    check(place, features, features @ t["decoder.weight"].T + t["bias"], "relu")
    t = {**linear(), "decoder.bias": numbers(WIDTH)}
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in t.items()}
    place = dictionary_folder(tmp_path / "b", "AutoEncoderNew", compiled)
    check(place, relu(z_of(t)), relu(z_of(t)) @ t["decoder.weight"].T + t["decoder.bias"], "relu")


@pytest.mark.parametrize("in_file", [True, False])
def test_topk_class_takes_k_from_the_tensors_or_the_configuration(tmp_path: Path, in_file: bool) -> None:
    t = {**linear(), "b_dec": numbers(WIDTH)}
    more = {"k": np.int32(3), "threshold": np.float32(0.1)} if in_file else {}
    z = relu(z_of(t, t["b_dec"]))
    features = np.where(z >= np.sort(z)[:, -3:-2], z, 0)
    place = dictionary_folder(tmp_path, "AutoEncoderTopK", t | more, k=3)
    check(place, features, features @ t["decoder.weight"].T + t["b_dec"], "topk")


def test_batchtopk_classes_use_the_threshold_of_training(tmp_path: Path) -> None:
    t = {**linear(), "b_dec": numbers(WIDTH), "k": np.int32(3), "threshold": np.float32(0.8)}
    z = z_of(t, t["b_dec"])
    features = np.where(z > 0.8, z, 0)
    decoded = features @ t["decoder.weight"].T + t["b_dec"]
    check(dictionary_folder(tmp_path / "a", "BatchTopKSAE", t), features, decoded, "batchtopk")
    plain = {
        "W_enc": t["encoder.weight"].T,
        "W_dec": t["decoder.weight"].T,
        "b_enc": t["encoder.bias"],
        "b_dec": t["b_dec"],
        "threshold": np.float32(0.8),
        "group_sizes": np.array([3, 8]),
    }
    check(dictionary_folder(tmp_path / "b", "MatryoshkaBatchTopKSAE", plain), features, decoded, "batchtopk")
    for untrained in ({"threshold": np.float32(-1)}, {}):
        kept = {name: tensor for name, tensor in t.items() if name != "threshold"}
        with pytest.raises(InputError, match="depend on the batch"):
            read_folder(dictionary_folder(tmp_path / "c", "BatchTopKSAE", kept | untrained))


def test_classes_whose_features_are_multiplied_by_the_norms_of_the_decoder(tmp_path: Path) -> None:
    t = gemma_tensors()
    t["W_dec"][2] = 0  # a feature without a decoder row stays as it is
    z = X @ t["W_enc"] + t["b_enc"]
    norms = np.linalg.norm(t["W_dec"], axis=1)
    acts = np.where(z > t["threshold"], relu(z), 0)
    place = dictionary_folder(tmp_path, "JumpReluAutoEncoder", t)
    check(place, acts * np.where(norms > 0, norms, 1), acts @ t["W_dec"] + t["b_dec"], "jumprelu")
    t = {name: tensor for name, tensor in linear().items() if name != "encoder.bias"}
    t |= {"decoder_bias": numbers(WIDTH), "r_mag": numbers(FEATURES), "gate_bias": numbers(FEATURES, seed=2)}
    t["mag_bias"] = numbers(FEATURES, seed=3)
    projected = (X - t["decoder_bias"]) @ t["encoder.weight"].T
    acts = (projected + t["gate_bias"] > 0) * relu(np.exp(t["r_mag"]) * projected + t["mag_bias"])
    norms = np.linalg.norm(t["decoder.weight"], axis=0)
    decoded = acts @ t["decoder.weight"].T + t["decoder_bias"]
    check(dictionary_folder(tmp_path, "GatedAutoEncoder", t), acts * norms, decoded, "gated")


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"submodule_name": "mlp_out_layer_4"}, "reads 'mlp_out_layer_4'; only the residual stream"),
        ({"submodule_name": "Attention_4"}, "only the residual stream"),
        ({"dict_class": "CrossCoder"}, "dict_class 'CrossCoder'.*known: AutoEncoder, AutoEncoderNew"),
        ({"layer": "four"}, "layer of config.json is 'four'"),
    ],
)
def test_other_sites_and_classes_are_refused(tmp_path: Path, trainer: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_folder(dictionary_folder(tmp_path, "AutoEncoder", {**linear(), "bias": numbers(WIDTH)}, **trainer))


class Harmful:
    """An object whose unpickling runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def test_only_tensors_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = dictionary_folder(tmp_path, "AutoEncoder", {**linear(), "bias": numbers(WIDTH)})
    for content in (pickle.dumps(Harmful(), 2), b"", b"nothing", (place / "ae.pt").read_bytes()[:200]):
        (place / "ae.pt").write_bytes(content)
        with pytest.raises(InputError, match=r"ae\.pt cannot be read as tensors alone"):
            read_folder(place)
    assert not (tmp_path / "harmed").exists()
    torch.save([1, 2], place / "ae.pt")
    with pytest.raises(InputError, match="holds no tensors by name"):
        read_folder(place)


# Folders of SAELens, sites and damage


SITE = {"hook_point": "blocks.3.hook_resid_post", "hook_point_layer": 3, "hook_point_head_index": None}
TOPK = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 4}}
#: Configurations as SAELens wrote them over time, and the number of features that a vector keeps.
SAELENS: dict[str, tuple[dict[str, Any], int]] = {
    "oldest": (SITE, FEATURES),
    "without an architecture": ({**SITE, "activation_fn": "relu", "apply_b_dec_to_input": True}, FEATURES),
    "without what the bias does": ({**SITE, "architecture": "standard", "activation_fn_str": "relu"}, FEATURES),
    "a boolean normalisation": ({**SITE, "architecture": "standard", "normalize_activations": False}, FEATURES),
    "topk by its activation": ({**SITE, **TOPK}, 4),
    "topk by the other name of its activation": (
        {**SITE, "activation_fn": "topk", "activation_fn_kwargs": {"k": 4}},
        4,
    ),
    "topk with the arguments of its activation": (
        {**SITE, "architecture": "topk", "activation_fn_kwargs": {"k": 4}, "apply_b_dec_to_input": True},
        4,
    ),
    "topk of the standard architecture": ({**SITE, **TOPK, "architecture": "standard"}, 4),
    "topk of 6": (
        {"architecture": "topk", "k": 4, "apply_b_dec_to_input": True, "metadata": {"hook_name": SITE["hook_point"]}},
        4,
    ),
    "the bias is not subtracted": ({**SITE, "architecture": "standard", "apply_b_dec_to_input": False}, FEATURES),
}


def saelens_folder(place: Path, settings: dict[str, Any], **others: Any) -> Path:
    weights = {name: tensor for name, tensor in gemma_tensors().items() if name != "threshold"}
    return folder_of(place, cfg__json=settings, sae_weights__safetensors=save(weights), **others)


@pytest.mark.parametrize("name", SAELENS)
def test_every_configuration_of_saelens(tmp_path: Path, name: str) -> None:
    """What a configuration lacks has the default of SAELens: the bias is subtracted first."""
    settings, kept = SAELENS[name]
    t = gemma_tensors()
    z = (X - t["b_dec"] * settings.get("apply_b_dec_to_input", True)) @ t["W_enc"] + t["b_enc"]
    features = np.where(z >= np.sort(z)[:, -kept, None], relu(z), 0)
    found, files = SparseAutoencoder.from_folder(saelens_folder(tmp_path / "a", settings))
    same(found, features, features @ t["W_dec"] + t["b_dec"])
    assert found.layer == 3
    again, _ = SparseAutoencoder.from_folder(
        folder_of(tmp_path / "b", sae__safetensors=files["sae.safetensors"], cfg__json=files["cfg.json"])
    )
    assert again.id == found.id
    complete = {"architecture", "apply_b_dec_to_input"} <= settings.keys()
    assert ((tmp_path / "a" / "cfg.json").read_bytes() == files["cfg.json"]) is complete  # keys of these do not move


def test_saelens_writes_other_files_beside_the_weights(tmp_path: Path) -> None:
    settings = {"architecture": "standard", "hook_name": "blocks.5.hook_resid_pre", "hook_layer": 5}
    state = save({"n_dataset_processed": np.array([512])})
    others = {"sparsity__safetensors": save({"sparsity": numbers(FEATURES)}), "runner_cfg__json": {}}
    found, _ = SparseAutoencoder.from_folder(
        saelens_folder(tmp_path, settings, activations_store_state__safetensors=state, **others)
    )
    assert found.layer == 4  # before block 5 is after block 4


def test_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    linear_only = save({"encoder.weight": numbers(FEATURES, WIDTH), "W_dec": numbers(FEATURES, WIDTH)})
    sparsify = {"activation": "topk", "expansion_factor": 1, "num_latents": FEATURES, "k": 4, "d_in": WIDTH}
    places = {
        "sparsify": folder_of(tmp_path / "s", cfg__json=sparsify, sae__safetensors=linear_only),
        "Gemma Scope 2": folder_of(
            tmp_path / "g", config__json={"width": 4}, params__safetensors=save(gemma_tensors())
        ),
    }
    for tool, place in places.items():
        for path in (place, next(place.glob("*.safetensors"))):
            with pytest.raises(
                InputError, match=f"files of {tool}, which are not read; .*save them with its save_model"
            ):
                read_folder(path)


@pytest.mark.parametrize(
    ("settings", "layer"),
    [
        ({}, None),
        ({"hook_layer": 3}, 3),
        ({"hook_point_layer": 3}, 3),
        ({"hook_name": "blocks.0.hook_resid_pre", "hook_head_index": None}, -1),
        ({"metadata": {"hook_name": "blocks.12.hook_resid_post"}}, 12),
        ({"hook_point": "blocks.7.hook_resid_post"}, 7),
        ({"hook_name": "model.layers.9"}, 9),
        ({"hook_name": "transformer.h.2"}, 2),
    ],
)
def test_layers_are_read_from_the_site(settings: dict[str, Any], layer: int | None) -> None:
    assert layer_of(settings) == layer


@pytest.mark.parametrize(
    "settings",
    [
        {"hook_name": "blocks.7.hook_mlp_out"},
        {"hook_name": "blocks.7.attn.hook_z"},
        {"hook_name": "blocks.7.hook_resid_mid"},
        {"hook_name": "hook_embed"},
        {"metadata": {"hook_name": "blocks.7.ln2.hook_normalized"}},
        {"hook_name": "blocks.7.hook_resid_post", "hook_head_index": 0},
        {"hook_point": "blocks.7.hook_resid_post", "hook_point_head_index": 0},
        {"hook_name": "blocks.7.hook_resid_post", "hook_name_out": "blocks.8.hook_resid_post"},
        {"hook_layer": "7"},
    ],
)
def test_other_sites_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    weights = {name: tensor for name, tensor in gemma_tensors().items() if name != "threshold"}
    config = {"architecture": "relu", **settings}
    with pytest.raises(InputError, match=rf"^{tmp_path}: .*(reads|hook_layer)"):
        read_folder(folder_of(tmp_path, cfg__json=config, w__safetensors=save(weights)))
    with pytest.raises(InputError):
        SparseAutoencoder.from_bytes(save(weights), json.dumps(config).encode())


def test_damaged_files_are_named(tmp_path: Path) -> None:
    gemma = gemma_folder(tmp_path / "gemma")
    whole = (gemma / "params.npz").read_bytes()
    for content in (b"", b"nothing", whole[:300], whole[:-30]):
        (gemma / "params.npz").write_bytes(content)
        with pytest.raises(InputError, match=rf"^{gemma}: params\.npz is not a whole archive"):
            read_folder(gemma)
    for tensors, message in (
        ({"W_enc": numbers(2, 3)}, "the tensors lack W_dec, b_enc, b_dec, threshold"),
        (gemma_tensors() | {"b_enc": np.arange(3)}, "b_enc is of int64; floats are needed"),
        (gemma_tensors() | {"b_enc": np.array(["a"], dtype=object)}, "not a whole archive"),
    ):
        np.savez(gemma / "params.npz", **tensors)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            read_folder(gemma)
    np.savez(gemma / "params.npz", **(gemma_tensors() | {"b_enc": numbers(3)}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"^{gemma}: b_enc has shape \(3,\)"):
        SparseAutoencoder.from_folder(gemma)
    llama = llama_folder(tmp_path / "llama")
    (llama / "checkpoints" / "final.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=rf"^{llama}: .*not a safetensors file"):
        read_folder(llama)
    for content in (b"{", b"[]", b"\xff"):
        (llama / "hyperparams.json").write_bytes(content)
        with pytest.raises(InputError, match=r"hyperparams\.json"):
            read_folder(llama)
    (llama / "checkpoints" / "final.safetensors").unlink()
    (llama / "hyperparams.json").write_text("{}")
    with pytest.raises(InputError, match="has no weights beside it"):
        read_folder(llama)
    dictionary = dictionary_folder(tmp_path / "d", "JumpReluAutoEncoder", gemma_tensors() | {"threshold": numbers(3)})
    with pytest.raises(InputError, match=rf"^{dictionary}: "):
        read_folder(dictionary)
    (dictionary / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        read_folder(dictionary)
