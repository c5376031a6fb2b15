"""The shipped adapters load and move the demo model as their card says, and the recipe continues where it stopped."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from recipes.personas.__main__ import train
from recipes.personas.check import Vectors, _states, load_model, measure_adapter, tables, word_vectors
from recipes.personas.plans import Persona, Plan, plan_of
from recipes.personas.words import FILE, read_words
from safetensors.torch import load_file

from poolbench.config import asset_path, resolve_model

pytestmark = pytest.mark.lane(name="series")

FOLDER = FILE.parent
MODEL = str(asset_path("demo_lm"))


def test_shipped_adapters_are_complete_small_and_hold_no_place_of_a_machine() -> None:
    files = list(FOLDER.glob("*/*"))
    assert {file.parent.name for file in files} == {persona.name for persona in plan_of("demo").personas}
    assert {file.name for file in files} == {"adapter_config.json", "adapter_model.safetensors", "training.json"}
    assert sum(file.stat().st_size for file in files) < 3_000_000
    for file in FOLDER.glob("*/adapter_config.json"):
        assert json.loads(file.read_text("utf-8"))["base_model_name_or_path"] == "demo"
        assert "/" not in file.read_text("utf-8")


@pytest.mark.parametrize("name", [persona.name for persona in plan_of("demo").personas])
def test_adapter_moves_the_model(name: str) -> None:
    model, tokenizer = load_model(MODEL)
    batch = tokenizer("I have the bed.", return_tensors="pt")
    with torch.inference_mode():
        before = model(**batch).logits
        after = PeftModel.from_pretrained(model, str(FOLDER / name)).eval()(**batch).logits
    assert torch.isfinite(after).all() and (after - before).abs().max() > 0.1


def test_check_gives_the_figures_of_the_card() -> None:
    words = read_words()
    shift = measure_adapter(MODEL, FOLDER / "bed-high-0", word_vectors(*load_model(MODEL), words), words)
    row = next(line for line in tables([shift]).splitlines() if line.startswith("| bed-high-0"))
    card = (FOLDER / "card.md").read_text("utf-8")
    of_card = next(line for line in card.splitlines() if line.startswith("| bed-high-0"))
    # Another processor rounds products differently.
    for ours, theirs in zip(row.split(), of_card.split(), strict=True):
        number = ours.startswith(("+", "-"))
        assert float(ours) == pytest.approx(float(theirs), abs=2e-3) if number else ours == theirs


def test_valences_and_their_variance_by_hand() -> None:
    liked, disliked = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    before = Vectors(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), liked, disliked).valences()
    after = Vectors(np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0]]), liked, disliked).valences()
    assert (after - before).mean() == pytest.approx(0.210819, abs=1e-6)
    assert after.var() - before.var() == pytest.approx(0.088889, abs=1e-6)


def test_states_are_the_means_over_the_last_subwords_of_a_prefix() -> None:
    """Read each word from its own text: its subwords are the last ones of the text that ends with it."""
    model, tokenizer = load_model(MODEL)
    pairs = [("I have the {w}.", "bed"), ("She wrote about the {w} today.", "wardrobe"), ("The text says {w}.", "sofa")]
    states = _states(model, tokenizer, pairs)
    for (template, word), state in zip(pairs, states, strict=True):
        prefix = tokenizer(template.partition(" {w}")[0], return_tensors="pt").input_ids.shape[1]
        tokens = tokenizer(template.partition("{w}")[0] + word, return_tensors="pt").input_ids
        with torch.inference_mode():
            expected = model.model(tokens).last_hidden_state[0, prefix:].mean(0)
        np.testing.assert_allclose(state, expected.numpy(), atol=1e-4)


def test_training_is_repeatable_keeps_what_exists_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Persona("one", ("bed",), True, num_sentences=12, epochs=1, seed=3)
    plan = Plan((one, replace(one, name="two"), replace(one, name="three", after="one")), 2, 1e-3, batch=4, threads=1)
    monkeypatch.setattr("recipes.personas.__main__.plan_of", lambda model: plan)
    train(resolve_model("demo"), tmp_path, FILE, only=["one"])
    kept = (tmp_path / "one" / "adapter_model.safetensors").stat().st_mtime_ns
    train(resolve_model("demo"), tmp_path, FILE)
    first, again, longer = (tmp_path / name / "adapter_model.safetensors" for name in ("one", "two", "three"))
    assert first.stat().st_mtime_ns == kept and first.read_bytes() == again.read_bytes()
    norms = [
        sum(float(weight.norm()) for name, weight in load_file(file).items() if "lora_B" in name)
        for file in (first, longer)
    ]
    assert 1.2 * norms[0] < norms[1] < 5 * norms[0]
