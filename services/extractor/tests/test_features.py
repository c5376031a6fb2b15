"""Pooled features, loss recovered and dense features against numpy and a plain forward pass with a hook."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from services.extractor.tests.conftest import TEXTS, passages_of, run

from poolbench.contracts.tables import FEATURES
from poolbench.contracts.tasks import Task
from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import InputError
from poolbench.pooling.sinks import SinkRule
from poolbench.storage import Artifacts
from poolbench_extractor.encode import PassageTexts, Reading, encode
from poolbench_extractor.features import Encoder, autoencoder, coordinates, random_twin, read_features
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder

WIDTH, NUM_FEATURES, LAYER = 32, 80, 1
KEEP = Reading(sinks=SinkRule(leave_out=False))
ARCHITECTURES = ("standard", "jumprelu", "topk", "batchtopk", "gated")


def saved(architecture: str, *, width: int = WIDTH, apply_b_dec: bool = False, seed: int = 0) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    tensors = {
        "W_enc": rng.normal(size=(width, NUM_FEATURES)),
        "W_dec": rng.normal(size=(NUM_FEATURES, width)) / 9,
        "b_dec": rng.normal(size=width) / 4,
        **{name: rng.normal(size=NUM_FEATURES) / 4 for name in ("b_enc", "b_gate", "r_mag", "b_mag")},
        "threshold": rng.uniform(0.1, 2, size=NUM_FEATURES),
    }
    config = {"architecture": architecture, "k": 7, "apply_b_dec_to_input": apply_b_dec}
    weights = safetensors.numpy.save({name: value.astype(np.float32) for name, value in tensors.items()})
    return {"sae.safetensors": weights, "cfg.json": json.dumps(config).encode()}


def loaded(architecture: str = "standard", **options: Any) -> SparseAutoencoder:
    return SparseAutoencoder.from_bytes(*saved(architecture, **options).values())


def states_of(decoder: Decoder, texts: list[str]) -> list[np.ndarray]:
    """States of real tokens, one passage at a time."""
    found = []
    for passage in encode(decoder, PassageTexts([str(n) for n in range(len(texts))], texts)):
        (h_TD,) = capture(decoder, [passage], [LAYER]).states_of(LAYER)
        found.append(h_TD.float().cpu().numpy()[passage.context.real])
    return found


def dense(row: dict[str, Any], num_features: int) -> np.ndarray:
    values = np.zeros(num_features)
    values[row["features"]] = row["means"]
    return values


@pytest.mark.parametrize("apply_b_dec", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_are_those_of_numpy(llama: Decoder, architecture: str, apply_b_dec: bool) -> None:
    sae = loaded(architecture, apply_b_dec=apply_b_dec)
    passages = passages_of(TEXTS)
    encoders = {"features/a": autoencoder(sae, llama.device)}
    table = read_features(llama, passages, encoders, LAYER, reading=KEEP)["features/a"]
    assert table.schema.equals(FEATURES) and table.schema.metadata[b"num_features"] == b"80"
    states = states_of(llama, TEXTS)
    centre = np.concatenate(states).mean(axis=0)
    for row, x_TD in zip(table.to_pylist(), states, strict=True):
        values = sae.encode(x_TD)
        np.testing.assert_allclose(dense(row, NUM_FEATURES), values.mean(axis=0), atol=2e-5, rtol=2e-4)
        assert row["num_tokens"] == len(x_TD) and row["features"] == sorted(row["features"])
        assert row["l0"] == pytest.approx((values > 0).sum(axis=1).mean(), rel=1e-6)
        assert row["squared_error"] == pytest.approx(((x_TD - sae.decode(values)) ** 2).sum(), rel=1e-4)
        assert row["squared_norm"] == pytest.approx(((x_TD - centre) ** 2).sum(), rel=1e-4)


def test_marks_part_a_passage(llama: Decoder) -> None:
    """The parts add up to the whole; an empty one fails alone; overlapping marks count once."""
    passages = PassageTexts([f"p{n}" for n in range(4)], TEXTS[:4])
    marks = [[(4, 13), (8, 20)], [], [(0, 4)], [(10_000, 10_001)]]
    encoders = {"coordinates": coordinates(WIDTH)}
    rows = read_features(llama, passages, encoders, LAYER, marks=marks, reading=KEEP)["coordinates"].to_pylist()
    assert [(row["passage_id"], row["part"]) for row in rows if row["status"] != "ok"] == [("p3", "marked")]
    assert "no token that is marked" in rows[-2]["reason"]
    by_part = {(row["passage_id"], row["part"]): row for row in rows}
    assert ("p1", "marked") not in by_part
    for name in ("p0", "p2"):
        whole, *parts = (by_part[name, part] for part in ("all", "marked", "unmarked"))
        assert sum(part["num_tokens"] for part in parts) == whole["num_tokens"]
        together = sum(dense(part, 2 * WIDTH) * part["num_tokens"] for part in parts)
        np.testing.assert_allclose(together / whole["num_tokens"], dense(whole, 2 * WIDTH), atol=1e-5)
    assert all(row["squared_error"] == pytest.approx(0, abs=1e-6) for row in rows if row["status"] == "ok")


def test_a_random_twin_has_the_l0_of_each_token(llama: Decoder) -> None:
    dense_encoder = autoencoder(loaded("standard"), llama.device)
    x_TD = torch.from_numpy(np.concatenate(states_of(llama, TEXTS)))
    cut = dense_encoder.encode(x_TD).quantile(0.85)  # tokens differ in their L0 then
    own = Encoder("own", NUM_FEATURES, lambda x_TD: (z_Td := dense_encoder.encode(x_TD)) * (z_Td > cut))
    twin = random_twin(own, WIDTH, 3, llama.device)
    active, kept = ((each.encode(x_TD) > 0).sum(dim=1) for each in (own, twin))
    assert len(active.unique()) > 3 and torch.equal(active, kept)
    assert twin.id != own.id and twin.decode is None


def test_batches_and_shared_texts_change_nothing(llama: Decoder) -> None:
    encoders = {"features/a": autoencoder(loaded(), llama.device)}
    ids = [f"p{n}" for n in range(2 * len(TEXTS))]
    twice = read_features(llama, PassageTexts(ids, TEXTS * 2), encoders, LAYER, reading=KEEP)["features/a"].to_pylist()
    for first, second in zip(twice[: len(TEXTS)], twice[len(TEXTS) :], strict=True):
        np.testing.assert_allclose(dense(first, NUM_FEATURES), dense(second, NUM_FEATURES), atol=1e-5, rtol=1e-5)
    alone = read_features(llama, PassageTexts(ids[:1], TEXTS[:1]), encoders, LAYER, reading=KEEP)["features/a"]
    np.testing.assert_allclose(
        dense(alone.to_pylist()[0], NUM_FEATURES), dense(twice[0], NUM_FEATURES), atol=1e-4, rtol=1e-3
    )


def test_states_that_are_not_finite_fail_alone(llama: Decoder) -> None:
    encoders = {"features/a": autoencoder(loaded(), llama.device)}
    token = encode(llama, PassageTexts(["p"], ["No."]))[0].token_ids[-1]
    weight = llama.backbone.get_input_embeddings().weight
    kept = weight[token].clone()
    try:
        weight.data[token] = torch.nan
        passages = PassageTexts(["bad", "good"], ["No.", "Rain fell"])
        rows = read_features(llama, passages, encoders, LAYER, reading=KEEP)["features/a"].to_pylist()
    finally:
        weight.data[token] = kept
    assert [row["status"] for row in rows] == ["non_finite", "ok"]


def test_the_service_commits_each_output(artifacts: Artifacts, saved_llama: Path) -> None:
    """Marks are read from the table; names of autoencoders are free; one of another width is refused."""
    artifacts.write("import.sae.1", saved("topk"))
    artifacts.write("import.sae.2", saved("standard", width=16))
    roles = {"features/x": "out.1", "random/x": "out.2", "coordinates": "out.3"}
    inputs = {"passages": "corpus.passages.1", "sae/x": "import.sae.1"}
    task = Task(kind="extractor.features", inputs=inputs, outputs=roles, params={"model": str(saved_llama), "layer": 1})
    run(task, artifacts)
    own, twin, plain = (artifacts.read_table(key).to_pylist() for key in roles.values())
    assert all(row["l0"] <= 7 for row in own) and [r["l0"] for r in own] == [r["l0"] for r in twin]
    assert {row["squared_error"] for row in twin} == {None} and len(plain) == len(TEXTS)
    other = task.model_copy(update={"inputs": inputs | {"sae/x": "import.sae.2"}, "outputs": {"features/x": "out.4"}})
    with pytest.raises(InputError, match="sae/x: the autoencoder reads width 16"):
        run(other, artifacts)
