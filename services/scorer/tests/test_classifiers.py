"""Scoring and windows: equal to Transformers, whatever the batch, the order and the company."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load as load_tensors
from scipy.special import expit
from services.scorer.tests.conftest import load
from transformers import AutoTokenizer, BertForSequenceClassification

from poolbench.model_folders.bases import find_base
from poolbench.steps.scorer import ScoreParams, TrainParams
from poolbench_scorer.classifiers.scorer import Encoder, Head, Scorer, load_classifier, read_tokens
from poolbench_scorer.classifiers.scoring import score_texts, scores_table
from poolbench_scorer.classifiers.windows import (
    BaseTokenizer,
    draw,
    length_batches,
    loop_words,
    pad_ids,
    place,
    scoring_windows,
    shuffle_words,
    training_windows,
)
from poolbench_scorer.training.train import Trained, train_scorer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts(test_passages: pa.Table) -> list[str]:
    """Texts of very different lengths, an empty and a repeated one among them."""
    passages = test_passages["text"].to_pylist()[:8]
    cut = [" ".join(text.split()[: 3 + 11 * index]) for index, text in enumerate(passages)]
    return [*cut, "", cut[0], " ".join(passages[:3])]


@pytest.mark.parametrize("depth", [0, 3, 5])
def test_encoder_and_head_equal_transformers(depth: int) -> None:
    model = load_classifier(find_base("minilm"), num_labels=2)
    encoder, head = Encoder(model.bert, depth), Head(model, depth)
    ids, mask = pad_ids([(101, 2023, 2003, 102), (101, 2174, 1010, 2009, 2003, 2204, 102)], CPU)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask.long()).logits
        assert torch.allclose(head(encoder(ids, mask), mask), expected, atol=1e-5)
        alone = head(encoder(ids[:1, :4], mask[:1, :4]), mask[:1, :4])
        assert torch.allclose(alone, expected[:1], atol=1e-5)


def test_scores_equal_plain_transformers(minilm_training: Trained, minilm_scorer: Scorer, texts: list[str]) -> None:
    """The stored tensors over MiniLM, read by Transformers alone, one text at a time, without padding."""
    model = BertForSequenceClassification.from_pretrained(str(find_base("minilm").folder), num_labels=2).eval()
    model.load_state_dict(load_tensors(minilm_training.files["weights.safetensors"]), strict=False)
    tokenizer = AutoTokenizer.from_pretrained(str(find_base("minilm").folder))
    short = [text for text in texts if len(tokenizer(text)["input_ids"]) <= 130]
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in short]).double()
    temperature = json.loads(minilm_training.files["config.json"])["temperature"]
    expected = torch.softmax(logits / temperature, dim=1)[:, 1].numpy()
    assert len(short) >= 5
    np.testing.assert_allclose(score_texts({"a": minilm_scorer}, short)["a"], expected, atol=1e-5)


def test_scores_do_not_depend_on_batch_order_or_company(minilm_scorer: Scorer, texts: list[str]) -> None:
    scorers = {"contrast": minilm_scorer}
    together = score_texts(scorers, texts)["contrast"]
    small = score_texts(scorers, texts, ScoreParams(batch_tokens=128))["contrast"]
    backwards = score_texts(scorers, texts[::-1])["contrast"][::-1]
    alone = [score_texts(scorers, [text])["contrast"][0] for text in texts]
    for other in (small, backwards, alone):
        assert np.allclose(together, other, atol=1e-5)
    assert ((together >= 0) & (together <= 1)).all()
    assert together[9] == together[0]


def test_one_pass_for_many_scorers_equals_separate_passes(minilm_scorer: Scorer, texts: list[str]) -> None:
    other = replace(minilm_scorer, head=fresh_head(5), temperature=2.0)
    assert other.encoder is minilm_scorer.encoder
    both = score_texts({"a": minilm_scorer, "b": other}, texts)
    assert np.array_equal(both["a"], score_texts({"a": minilm_scorer}, texts)["a"])
    assert np.array_equal(both["b"], score_texts({"b": other}, texts)["b"])
    assert not np.allclose(both["a"], both["b"])


def test_shared_layers_run_once_however_many_scorers(minilm_scorer: Scorer, texts: list[str]) -> None:
    """Forward passes of every module of the encoder, counted: one a batch for five scorers, as for one."""
    calls: Counter[str] = Counter()
    modules = {"embeddings": minilm_scorer.encoder.embeddings, **dict(minilm_scorer.encoder.layers.named_children())}
    hooks = [
        module.register_forward_hook(lambda *_, name=name: calls.update([name])) for name, module in modules.items()
    ]
    heads = [fresh_head(seed) for seed in range(5)]
    scorers = {f"s{seed}": replace(minilm_scorer, head=head) for seed, head in enumerate(heads)}
    one_batch = ScoreParams(batch_tokens=100_000)
    score_texts(scorers, texts, one_batch)
    assert calls == dict.fromkeys(["embeddings", "0", "1", "2", "3", "4"], 1)
    score_texts({"s0": scorers["s0"]}, texts, one_batch)
    assert set(calls.values()) == {2}
    for hook in hooks:
        hook.remove()


def test_stored_scorers_of_one_base_share_their_encoder(
    tiny_bert: Path, scorer_passages: pa.Table, texts: list[str]
) -> None:
    """Not two copies of equal weights, but one module: that is what lets ``score_texts`` run it once."""
    params = TrainParams(concept="contrast", base=str(tiny_bert), mode="head", epochs=1, num_windows=1)
    one, two = (load(train_scorer(scorer_passages, params.model_copy(update={"seed": seed}), CPU)) for seed in (0, 1))
    assert one.encoder is two.encoder and one.encoder_id == two.encoder_id
    both = score_texts({"one": one, "two": two}, texts)
    assert not np.allclose(both["one"], both["two"])


def fresh_head(seed: int) -> Head:
    """A random classification head over MiniLM's last layer."""
    torch.manual_seed(seed)
    return Head(load_classifier(find_base("minilm"), num_labels=2), 5).eval()


def test_long_texts_are_averaged_over_even_windows(minilm_scorer: Scorer, texts: list[str]) -> None:
    tokens = minilm_scorer.tokens
    (content,) = tokens.content([texts[-1]])
    num_windows = -(-len(content) // 128)
    assert num_windows >= 3
    edges = [round(len(content) / num_windows * index) for index in range(num_windows + 1)]
    margins = []
    for start, end in pairwise(edges):
        ids, mask = pad_ids([tokens.wrap(content[start:end])], CPU)
        with torch.no_grad():
            absent, present = minilm_scorer.head(minilm_scorer.encoder(ids, mask), mask)[0].tolist()
        margins.append(present - absent)
    expected = expit(np.array(margins) / minilm_scorer.temperature).mean()
    assert score_texts({"a": minilm_scorer}, [texts[-1]])["a"][0] == pytest.approx(expected, abs=1e-5)


def test_scores_are_a_long_table_and_none_without_texts(minilm_scorer: Scorer) -> None:
    table = scores_table(["t1", "t2"], {"a": np.array([0.1, 0.2]), "b": np.array([0.3, 0.4])})
    assert table.to_pylist()[2] == {"text_id": "t1", "scorer": "b", "score": 0.3}
    assert score_texts({"a": minilm_scorer}, [])["a"].shape == (0,)
    assert scores_table([], {}).num_rows == 0


def test_scorers_of_different_bases_score_side_by_side(
    minilm_scorer: Scorer, tiny_bert: Path, scorer_passages: pa.Table, texts: list[str]
) -> None:
    params = TrainParams(concept="contrast", base=str(tiny_bert), mode="full", epochs=1, num_windows=1)
    tiny = load(train_scorer(scorer_passages, params, CPU))
    both = score_texts({"minilm": minilm_scorer, "tiny": tiny}, texts)
    assert np.array_equal(both["tiny"], score_texts({"tiny": tiny}, texts)["tiny"])
    assert np.array_equal(both["minilm"], score_texts({"minilm": minilm_scorer}, texts)["minilm"])


@pytest.fixture(scope="module")
def tokens() -> BaseTokenizer:
    return read_tokens(find_base("minilm"))


@pytest.mark.parametrize(
    ("length", "expected"), [(0, [0]), (1, [1]), (128, [128]), (129, [64, 65]), (300, [100, 100, 100])]
)
def test_scoring_windows_cover_a_text_evenly(length: int, expected: list[int]) -> None:
    content = tuple(range(length))
    windows = scoring_windows(content)
    assert sorted(map(len, windows)) == expected
    assert sum(windows, ()) == content


def test_matched_passages_are_cut_at_the_same_places() -> None:
    passage = tuple(range(200))
    rewrite = passage[:50] + passage[51:]
    cuts = [training_windows(content, draw(0, "pair-7"), 3, (24, 64)) for content in (passage, rewrite)]
    assert [len(window) for window in cuts[0]] == [len(window) for window in cuts[1]]
    firsts = [[window[0] for window in windows] for windows in cuts]
    assert np.abs(np.subtract(*firsts)).max() <= 2


def test_training_windows_have_generation_like_lengths_and_stay_inside() -> None:
    content = tuple(range(300))
    whole, *short = training_windows(content, draw(0, "a"), 50, (24, 64))
    assert len(whole) == 128
    assert {len(window) for window in short} <= set(range(24, 65))
    assert all(window == content[window[0] : window[-1] + 1] for window in short)
    assert training_windows(content[:10], draw(0, "a"), 2, (24, 64)) == [content[:10]] * 3
    assert [place(start, 10, 4) for start in (0.0, 0.5, 0.999)] == [0, 3, 6]
    assert place(0.9, 3, 4) == 0


def test_wrapping_and_cutting_by_tokens(tokens: BaseTokenizer) -> None:
    (content,) = tokens.content(["Rain fell."])
    assert list(tokens.wrap(content)) == tokens.tokenizer("Rain fell.")["input_ids"]
    text = "The Unbelievable harbourmaster, however, refused: nobody (not even Ann) could moor there."
    piece = tokens.cut(text, 0.4, 6)
    assert piece in text
    assert len(tokens.content([piece])[0]) == 6
    assert tokens.cut("Rain fell.", 0.9, 40) == "Rain fell."


def test_batches_bound_padded_tokens_lose_nothing_and_mask_padding() -> None:
    lengths = [5, 128, 1, 64, 64, 3, 90]
    batches = length_batches(lengths, 130)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 130 for batch in batches)
    assert length_batches([300], 130) == [[0]]
    ids, mask = pad_ids([(7, 8), (9,)], CPU)
    assert ids.tolist() == [[7, 8], [9, 0]]
    assert mask.tolist() == [[True, True], [True, False]]


def test_broken_texts_keep_words_and_length() -> None:
    text = "one two three four five six seven eight nine ten"
    assert sorted(shuffle_words(text, draw(0, "x")).split()) == sorted(text.split())
    looped = loop_words(text, draw(0, "x")).split()
    period = next(size for size in range(1, 11) if looped[size:] == looped[:-size])
    assert len(looped) == 10 and 3 <= period <= 8
    assert loop_words("", draw(0, "x")) == ""
