"""Scoring: equal to Transformers, whatever the batch, the order and the company; published scorers too."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import expit
from transformers import AutoTokenizer, DistilBertConfig, DistilBertForSequenceClassification

from poolbench.errors import ModelError
from poolbench_scorer.base import find_base, load_classifier
from poolbench_scorer.batches import pad_ids
from poolbench_scorer.config import ScoreParams, TrainParams
from poolbench_scorer.core import score_texts, scores_table
from poolbench_scorer.encoder import Crown, Trunk
from poolbench_scorer.imported import import_scorer
from poolbench_scorer.model import Scorer, load_scorer
from poolbench_scorer.train import Trained, train_scorer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts(test_passages: pa.Table) -> list[str]:
    """Texts of very different lengths, an empty and a repeated one among them."""
    passages = test_passages["text"].to_pylist()[:8]
    cut = [" ".join(text.split()[: 3 + 11 * index]) for index, text in enumerate(passages)]
    return [*cut, "", cut[0], " ".join(passages[:3])]


@pytest.mark.parametrize("depth", [0, 3, 5])
def test_trunk_and_crown_equal_transformers(depth: int) -> None:
    model = load_classifier(find_base("minilm"), num_labels=2)
    trunk, crown = Trunk(model.bert, depth), Crown(model, depth)
    ids, mask = pad_ids([(101, 2023, 2003, 102), (101, 2174, 1010, 2009, 2003, 2204, 102)], CPU)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask.long()).logits
        assert torch.allclose(crown(trunk(ids, mask), mask), expected, atol=1e-5)
        alone = crown(trunk(ids[:1, :4], mask[:1, :4]), mask[:1, :4])
        assert torch.allclose(alone, expected[:1], atol=1e-5)


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
    other_crown = Crown(load_classifier(find_base("minilm"), num_labels=2), 5).eval()
    other = replace(minilm_scorer, crown=other_crown, temperature=2.0)
    assert other.trunk is minilm_scorer.trunk
    both = score_texts({"a": minilm_scorer, "b": other}, texts)
    assert np.array_equal(both["a"], score_texts({"a": minilm_scorer}, texts)["a"])
    assert np.array_equal(both["b"], score_texts({"b": other}, texts)["b"])
    assert not np.allclose(both["a"], both["b"])


def test_the_shared_trunk_runs_once_per_batch(minilm_scorer: Scorer, texts: list[str]) -> None:
    calls = []
    hook = minilm_scorer.trunk.register_forward_hook(lambda *_: calls.append(1))
    score_texts({"a": minilm_scorer, "b": minilm_scorer}, texts, ScoreParams(batch_tokens=100_000))
    hook.remove()
    assert len(calls) == 1


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
            absent, present = minilm_scorer.crown(minilm_scorer.trunk(ids, mask), mask)[0].tolist()
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


def test_published_bert_is_imported_as_it_is(tiny_bert: Path, scorer_passages: pa.Table, texts: list[str]) -> None:
    params = TrainParams(concept="contrast", base=str(tiny_bert), mode="import", num_windows=1)
    trained = import_scorer(scorer_passages, params, CPU)
    scorer = restored(trained)
    model = load_classifier(find_base(str(tiny_bert)))
    encoded = scorer.tokens.tokenizer(texts[3], return_tensors="pt")
    with torch.no_grad():
        absent, present = model(**encoded).logits[0].tolist()
    expected = expit((present - absent) / scorer.temperature)
    assert score_texts({"a": scorer}, [texts[3]])["a"][0] == pytest.approx(expected, abs=1e-5)
    assert json.loads(trained.files["config.json"])["kind"] == "import"
    assert {row["metric"] for row in trained.measures.to_pylist()} == {"scorer.auroc", "scorer.ece"}


def test_other_architectures_and_labels_are_imported(
    tmp_path: Path, scorer_passages: pa.Table, texts: list[str]
) -> None:
    labels = {0: "other", 1: "contrast", 2: "neither"}
    torch.manual_seed(0)
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, id2label=labels, num_labels=3)
    model = DistilBertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(str(find_base("minilm").folder)).save_pretrained(tmp_path)
    params = TrainParams(concept="contrast", base=str(tmp_path), mode="import", num_windows=1)
    with pytest.raises(ModelError, match="name one by positive_label"):
        import_scorer(scorer_passages, params, CPU)
    with pytest.raises(ModelError, match="no label 'x'"):
        import_scorer(scorer_passages, params.model_copy(update={"positive_label": "x"}), CPU)
    named = params.model_copy(update={"positive_label": "contrast"})
    scorer = restored(import_scorer(scorer_passages, named, CPU))
    encoded = scorer.tokens.tokenizer(texts[2], return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits[0]
    odds = float(logits[1] - torch.logsumexp(logits[[0, 2]], dim=0))
    expected = expit(odds / scorer.temperature)
    assert score_texts({"a": scorer}, [texts[2]])["a"][0] == pytest.approx(expected, abs=1e-5)


def test_an_encoder_without_a_head_is_no_published_scorer(scorer_passages: pa.Table) -> None:
    with pytest.raises(ModelError, match="no sequence classifier"):
        import_scorer(scorer_passages, TrainParams(concept="contrast", mode="import"), CPU)


def restored(trained: Trained) -> Scorer:
    """The scorer in training's files."""
    return load_scorer(trained.files.__getitem__, list(trained.files), CPU)
