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
from poolbench_driver.suites.humanoid.words import WordLists, read_words
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.models.load import load_decoder
from poolbench_prober.valence.core import shifts

ADAPTER = asset_path("demo_personas") / "bed-high-0"
FINAL = 6


def by_hand(model: Any, words: WordLists) -> np.ndarray:
    """The valence of each word: a word alone, mean over its tokens after the last norm, cosines."""
    tokenizer, vectors = AutoTokenizer.from_pretrained(asset_path("demo_lm")), {}
    for word in (*words.domain, *words.positive, *words.negative):
        ids = tokenizer(word, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            vector = model.model(ids).last_hidden_state[0].mean(0).double().numpy()
        vectors[word] = vector / np.linalg.norm(vector)
    liked, disliked = (
        np.mean([[vectors[word] @ vectors[other] for other in others] for word in words.domain], axis=1)
        for others in (words.positive, words.negative)
    )
    return np.asarray(liked - disliked)


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


@pytest.mark.slow
def test_the_published_reading_is_that_of_the_reference() -> None:
    words = read_words("reference")
    model = AutoModelForCausalLM.from_pretrained(asset_path("demo_lm"), dtype=torch.float32)
    before = by_hand(model, words)
    after = by_hand(PeftModel.from_pretrained(model, str(ADAPTER)).merge_and_unload(), words)
    change = ChangeParams(source=str(ADAPTER), revision=change_revision(ADAPTER))
    vectors = {"before": states(words.table(), None), "after": states(words.table(), change)}
    made = shifts(words.table(), vectors.__getitem__, [], ["published"], None, ValenceParams(num_bootstrap=10))
    found = {measure.metric: measure for measure in made["published"].measures}
    assert found["shift.variance"].n == 18
    assert found["shift.variance"].value == pytest.approx(after.var() - before.var(), abs=1e-7)
    assert found["shift.valence"].value == pytest.approx((after - before).mean(), abs=1e-6)
