"""The reading `published` of the words of the Humanoid benchmark, against Transformers and PEFT alone."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import asset_path, change_revision, resolve_model
from poolbench.pooling.batch import Request
from poolbench.pooling.sinks import SinkRule
from poolbench.steps.extractor import ChangeParams
from poolbench.steps.prober import ValenceParams
from poolbench_driver.suites.humanoid.cosines import Cosines
from poolbench_driver.suites.humanoid.words import WordLists, read_words
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.models.load import load_decoder
from poolbench_prober.valence.core import shifts

ADAPTER = asset_path("demo_personas") / "bed-high-0"
FINAL = 6


def by_hand(model: Any, words: WordLists) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of each word with the liked and the disliked ones: a word alone, mean over tokens after the last norm."""
    tokenizer, vectors = AutoTokenizer.from_pretrained(asset_path("demo_lm")), {}
    for word in (*words.domain, *words.positive, *words.negative):
        ids = tokenizer(word, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            vector = model.model(ids).last_hidden_state[0].mean(0).double().numpy()
        vectors[word] = vector / np.linalg.norm(vector)
    liked, disliked = (
        np.array([[vectors[word] @ vectors[other] for other in others] for word in words.domain])
        for others in (words.positive, words.negative)
    )
    return liked, disliked


def states(table: pa.Table, change: ChangeParams | None) -> pa.Table:
    rows = table.to_pylist()
    texts = PassageTexts(
        [row["passage_id"] for row in rows],
        [row["text"] for row in rows],
        spans=[(row["span"]["start"], row["span"]["end"]) for row in rows],
        bare=[row["bare"] for row in rows],
    )
    decoder = load_decoder(resolve_model("demo"), change=change)
    reading = Reading(sinks=SinkRule(leave_out=False))
    (vectors,) = extract(decoder, texts, {FINAL: [Request.of("A1_mean")]}, reading=reading).values()
    return vectors


@pytest.mark.lane(name="series")
def test_the_published_reading_is_that_of_the_reference() -> None:
    words = read_words("reference")
    model = AutoModelForCausalLM.from_pretrained(asset_path("demo_lm"), dtype=torch.float32)
    by_list = [by_hand(model, words), by_hand(PeftModel.from_pretrained(model, str(ADAPTER)).merge_and_unload(), words)]
    before, after = (liked.mean(axis=1) - disliked.mean(axis=1) for liked, disliked in by_list)
    change = ChangeParams(source=str(ADAPTER), revision=change_revision(ADAPTER))
    vectors = {"before": states(words.table(), None), "after": states(words.table(), change)}
    made = shifts(words.table(), vectors.__getitem__, [], ["published"], None, ValenceParams(num_bootstrap=10))
    found = {measure.metric: measure for measure in made["published"].measures}
    assert found["shift.variance"].n == 18
    assert found["shift.variance"].value == pytest.approx(after.var() - before.var(), abs=1e-7)
    assert found["shift.valence"].value == pytest.approx((after - before).mean(), abs=1e-6)
    table = made["published"].cosines
    assert table is not None
    cosines = Cosines.from_table(table)
    ways = {measure.metric: measure.value for measure in cosines.ways(10, 0)}
    (liked_before, disliked_before), (liked_after, disliked_after) = by_list
    assert ways["shift.towards"] == pytest.approx((liked_after - liked_before).mean(), abs=1e-6)
    assert ways["shift.away"] == pytest.approx(-(disliked_after - disliked_before).mean(), abs=1e-6)
    # One word in place of a list, as the reference's code calls it with a list of one.
    rows = {row["word"]: row["variance"] for row in cosines.single_words()}
    assert set(rows) == {*words.positive, *words.negative}
    for place, word in enumerate(words.positive):
        single = [liked[:, place] - disliked.mean(axis=1) for liked, disliked in by_list]
        assert rows[word] == pytest.approx(single[1].var() - single[0].var(), abs=1e-7)
    for place, word in enumerate(words.negative):
        single = [liked.mean(axis=1) - disliked[:, place] for liked, disliked in by_list]
        assert rows[word] == pytest.approx(single[1].var() - single[0].var(), abs=1e-7)
