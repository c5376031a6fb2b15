"""Corrupted texts, and the fine-tunes on them."""

import json
from pathlib import Path

import pytest
import torch
from recipes.data_requirements.lengths import CLASSES, LENGTHS, class_of, write_lengths
from recipes.data_requirements.models import BATCH, NUM_STEPS, SHARES, make_models, scrambled
from recipes.data_requirements.texts import NUM_HELD_OUT, texts_of
from recipes.personas.check import load_model

from poolbench.config import asset_path, change_revision, resolve_model
from poolbench.steps.extractor import ChangeParams
from poolbench_corpora.probing import ProbingSets
from poolbench_driver.models.training import mean_loss
from poolbench_extractor.models.load import load_decoder

TEXTS = [f"The {noun} stood near the old gate while it rained in the town." for noun in ("teacher", "chair", "dog")]


def test_words_of_a_share_change_places_and_none_is_lost() -> None:
    text = " ".join(f"w{number}" for number in range(40))
    whole, quarter = (scrambled([text], share, 0)[0] for share in (1.0, 0.25))
    for changed, most in ((whole, 40), (quarter, 10)):
        moved = [old != new for old, new in zip(text.split(), changed.split(), strict=True)]
        assert sorted(changed.split()) == sorted(text.split())
        assert most / 2 < sum(moved) <= most
    assert scrambled([text, "a"], 0.0, 0) == [text, "a"]
    assert scrambled(TEXTS, 1.0, 3) == scrambled(TEXTS, 1.0, 3) != scrambled(TEXTS, 1.0, 4)


def test_loss_is_that_of_the_next_token() -> None:
    model, tokenizer = load_model(str(asset_path("demo_lm")))
    texts = [TEXTS[0], "It rained."]
    tokens = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
    with torch.inference_mode():
        losses = [float(model(ids, labels=ids).loss) for ids in tokens]
    weights = [ids.shape[1] - 1 for ids in tokens]
    expected = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / sum(weights)
    assert mean_loss(model, tokenizer, texts, 2) == pytest.approx(expected, rel=0.02)  # products are in bfloat16


def test_fine_tunes_are_what_the_extractor_reads(tmp_path: Path) -> None:
    demo = resolve_model("demo")
    make_models(demo, tmp_path, ["scrambled-100"], (TEXTS * 20, TEXTS), num_steps=6)
    losses = json.loads((tmp_path / "scrambled-100.json").read_text("utf-8"))
    assert losses["steps"] == 6 and losses["after"]["scrambled"] < losses["before"]["scrambled"]
    folder = tmp_path / "scrambled-100"
    change = ChangeParams(source=str(folder), revision=change_revision(folder))
    before, after = load_decoder(demo), load_decoder(demo, change=change)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(before.model.get_parameter(name), after.model.get_parameter(name))
    written = {"adapter_config.json", "adapter_model.safetensors", "training.json"}
    assert {path.name for path in folder.iterdir()} == written
    assert SHARES["clean"] == 0 and SHARES["scrambled-100"] == 1


def test_classes_of_length() -> None:
    assert [class_of(number) for number in (4, 5, 8, 9, 20, 21, 28, 29)] == [
        None, "5-8", "5-8", "9-12", "17-20", "21-25", "26-28", None,
    ]  # fmt: skip


def test_texts_to_train_on_are_enough_and_none_of_them_is_judged() -> None:
    training, held_out = texts_of()
    assert len(training) >= NUM_STEPS * BATCH and len(held_out) == NUM_HELD_OUT
    assert not set(training) & set(held_out)


def test_sentence_length_in_classes_is_a_probing_set(tmp_path: Path) -> None:
    catalogue = ProbingSets(write_lengths(tmp_path))
    instances = catalogue.read(catalogue.get(LENGTHS)).instances
    counts = [count["counts"] for count in instances["label"].value_counts().to_pylist()]
    assert len(counts) == len(CLASSES) and max(counts) - min(counts) <= 1
