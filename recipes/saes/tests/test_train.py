"""Training of autoencoders on states with known sparse features, and their export."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes.saes import __main__ as command
from recipes.saes.__main__ import _files
from recipes.saes.plans import Plan
from recipes.saes.quality import quality_of
from recipes.saes.texts import _cut
from recipes.saes.train import Autoencoder, train
from torch import Tensor

from poolbench.config import assets_folder, resolve_model
from poolbench.directions.sae import SparseAutoencoder
from poolbench_corpora.planted import lm_documents
from poolbench_extractor.encode import PassageTexts, encode
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.load import load_decoder

pytestmark = pytest.mark.lane(name="series")

WIDTH, NUM_TRUE, ACTIVE = 16, 24, 3
PLAN = Plan(("relu", "topk", "jumprelu"), (32,), ACTIVE, 300 * 1024, 0.0, "float32")
HOOK = "blocks.2.hook_resid_post"


@dataclass
class Planted:
    """A reader whose states are sums of a few of the same directions, far from the origin and not of norm sqrt(D)."""

    width: int = WIDTH

    def states(self, texts: Sequence[str]) -> Iterator[Tensor]:
        """Yield 1,024 states per text."""
        generator = torch.Generator().manual_seed(1)
        drawn_FD = torch.randn(NUM_TRUE, WIDTH, generator=generator)
        directions_FD = drawn_FD / drawn_FD.norm(dim=1, keepdim=True)
        for _ in texts:
            kept_nF = torch.rand(1024, NUM_TRUE, generator=generator).argsort(dim=1) < ACTIVE
            sizes_nF = kept_nF * (1 + torch.rand(1024, NUM_TRUE, generator=generator))
            yield 7 * (sizes_nF @ directions_FD + 0.5)


@pytest.fixture(scope="module")
def trained() -> tuple[dict[str, Autoencoder], float]:
    return train(Planted(), ["text"] * 300, PLAN)


@pytest.fixture(name="x_nD")
def planted() -> Tensor:
    return torch.cat(list(Planted().states(["a", "b"])))


def reconstructed(model: Autoencoder, x_nD: Tensor) -> Tensor:
    return model.features(model.pre(x_nD)) @ model.w_dec + model.b_dec


@pytest.mark.parametrize("architecture", PLAN.architectures)
def test_training_lowers_the_loss_and_keeps_features_few(
    trained: tuple[dict[str, Autoencoder], float], x_nD: Tensor, architecture: str
) -> None:
    models, scale = trained
    before = Autoencoder(architecture, WIDTH, 32, ACTIVE, 0)
    before.start(scale * x_nD)
    after = models[f"{architecture}-32"]
    before.penalty = after.penalty  # which only relu has; it rises while features are too many
    with torch.no_grad():
        assert after.loss(scale * x_nD) < 0.6 * before.loss(scale * x_nD)
        l0 = float((after.features(after.pre(scale * x_nD)) > 0).sum(dim=1).float().mean())
    assert l0 <= ACTIVE if architecture == "topk" else 0.3 * ACTIVE < l0 < 3 * ACTIVE


def test_states_are_scaled_to_mean_squared_norm_of_the_width(trained: tuple[dict[str, Autoencoder], float]) -> None:
    first = next(Planted().states(["text"]))
    assert trained[1] ** 2 * float(first.square().sum(dim=1).mean()) == pytest.approx(WIDTH, rel=0.1)


@pytest.mark.parametrize("architecture", PLAN.architectures)
def test_an_exported_autoencoder_computes_at_the_original_scale(
    trained: tuple[dict[str, Autoencoder], float], x_nD: Tensor, architecture: str, tmp_path: Path
) -> None:
    """A feature has the size of the trained one, times the norm of its decoder row, over the scale."""
    models, scale = trained
    model = models[f"{architecture}-32"]
    for name, data in _files(model, scale, PLAN, HOOK, "demo", 0).items():
        (tmp_path / name).write_bytes(data)
    sae, _ = SparseAutoencoder.from_folder(tmp_path)
    assert (sae.architecture, sae.width, sae.num_features, sae.layer) == (architecture, WIDTH, 32, 2)
    assert sae.k == (ACTIVE if architecture == "topk" else None)
    np.testing.assert_allclose(np.linalg.norm(sae.w_dec, axis=1), 1, rtol=1e-5)
    with torch.no_grad():
        expected_nd = model.features(model.pre(scale * x_nD)) * model.w_dec.norm(dim=1) / scale
        expected_nD = reconstructed(model, scale * x_nD) / scale
    found_nd = sae.encode(x_nD.numpy())
    # A state at a threshold may fall on either side of it in float32.
    agree_n = ((found_nd > 0) == (expected_nd.numpy() > 0)).all(axis=1)
    assert agree_n.mean() > 0.99
    np.testing.assert_allclose(found_nd[agree_n], expected_nd.numpy()[agree_n], atol=2e-4)
    np.testing.assert_allclose(sae.decode(found_nd)[agree_n], expected_nD.numpy()[agree_n], atol=2e-3)


def test_quality_is_that_of_the_states_of_the_model() -> None:
    """The figures of features, computed from kept states and the numpy autoencoder."""
    texts = ["The ferry waited at the pier until noon.", "It rained, although nobody had asked for it."]
    decoder, name = load_decoder(resolve_model("demo")), "topk-512"
    sae, _ = SparseAutoencoder.from_folder(assets_folder() / "demo_saes" / name)
    found = quality_of({name: sae}, decoder, 3, texts)[name]
    passages = encode(decoder, PassageTexts(["0", "1"], texts))
    states = capture(decoder, passages, [3]).states_of(3)
    x_nD = np.concatenate([h_TD.numpy()[each.context.real] for h_TD, each in zip(states, passages, strict=True)])
    values_nd = sae.encode(x_nD)
    error = ((x_nD - sae.decode(values_nd)) ** 2).sum() / ((x_nD - x_nD.mean(axis=0)) ** 2).sum()
    share_d = (values_nd > 0).mean(axis=0)
    assert (found["l0"], found["num_tokens"]) == (24, len(x_nD))
    assert found["unexplained_variance"] == pytest.approx(error, rel=1e-4)
    assert found["dead_share"] == pytest.approx((share_d == 0).mean())
    assert found["dense_share"] == pytest.approx((share_d > 0.1).mean())
    assert 0.5 < (found["loss_recovered"] or 0) < 1


def test_pieces_are_cut_at_spaces_and_a_short_rest_is_left_out() -> None:
    pieces = _cut("word " * 600)
    assert len(pieces) == 2 and all(1190 < len(piece) <= 1200 for piece in pieces)
    assert set(" ".join(pieces).split()) == {"word"}


def test_each_seed_is_a_training_of_its_own_and_says_so(tmp_path: Path) -> None:
    """Two trainings on 30 pieces of planted text differ in their weights, and in one number of their settings."""
    pieces = [each.text for each in lm_documents(0, 40, [None])]
    plan = Plan(("topk",), (32,), ACTIVE, 2048, 0.0, "float32")
    command.make(resolve_model("demo"), plan, 3, pieces[:30], tmp_path, seeds=range(2))
    settings, weights = {}, {}
    for name in ("topk-32", "topk-32-s1"):
        sae, files = SparseAutoencoder.from_folder(tmp_path / name)
        settings[name], weights[name] = json.loads(files["cfg.json"]), sae.w_dec
    assert [each["metadata"].pop("seed") for each in settings.values()] == [0, 1]
    assert settings["topk-32"] == settings["topk-32-s1"]
    assert not np.allclose(*weights.values(), atol=0.1)
    command.check(resolve_model("demo"), pieces[30:], tmp_path)
    assert set(json.loads((tmp_path / "quality.json").read_text())) == set(settings)
