"""Scoring: equal to Transformers, whatever the batch, the order and the company."""

from __future__ import annotations

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
from transformers import AutoTokenizer, BertForSequenceClassification

from poolbench.models.bases import find_base
from poolbench.steps.scorer import ScoreParams, TrainParams
from poolbench_scorer.models.scorer import Encoder, Head, Scorer, load_classifier, load_scorer
from poolbench_scorer.models.scoring import score_texts, scores_table
from poolbench_scorer.models.windows import pad_ids
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
    torch.manual_seed(5)
    other_head = Head(load_classifier(find_base("minilm"), num_labels=2), 5).eval()
    other = replace(minilm_scorer, head=other_head, temperature=2.0)
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
    one, two = (
        restored(train_scorer(scorer_passages, params.model_copy(update={"seed": seed}), CPU)) for seed in (0, 1)
    )
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


def test_no_texts_give_no_scores(minilm_scorer: Scorer) -> None:
    assert score_texts({"a": minilm_scorer}, [])["a"].shape == (0,)
    assert scores_table([], {}).num_rows == 0


def test_scores_table_is_long() -> None:
    table = scores_table(["t1", "t2"], {"a": np.array([0.1, 0.2]), "b": np.array([0.3, 0.4])})
    assert table.to_pylist()[2] == {"text_id": "t1", "scorer": "b", "score": 0.3}


def test_scorers_of_different_bases_score_side_by_side(
    minilm_scorer: Scorer, tiny_bert: Path, scorer_passages: pa.Table, texts: list[str]
) -> None:
    params = TrainParams(concept="contrast", base=str(tiny_bert), mode="full", epochs=1, num_windows=1)
    tiny = restored(train_scorer(scorer_passages, params, CPU))
    both = score_texts({"minilm": minilm_scorer, "tiny": tiny}, texts)
    assert np.array_equal(both["tiny"], score_texts({"tiny": tiny}, texts)["tiny"])
    assert np.array_equal(both["minilm"], score_texts({"minilm": minilm_scorer}, texts)["minilm"])


def restored(trained: Trained) -> Scorer:
    """The scorer in training's files."""
    return load_scorer(trained.files.__getitem__, list(trained.files), CPU)
