"""Published scorers: folders as they lie on Hugging Face, stated labels, safe weights; equal to Transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from scipy.special import expit
from services.scorer.tests.conftest import load, save_tiny_bert
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

from poolbench.errors import ModelError
from poolbench.model_folders.bases import find_base
from poolbench.settings import ScorerSettings
from poolbench.steps.scorer import TrainParams
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.training.imported import LabelNeededError, import_scorer
from poolbench_scorer.training.train import Trained

CPU = torch.device("cpu")
TEXTS = ["The tide was high. However, no boat sailed.", "Rain.", "Although it rained, they went out to sea."]

TRUST_PICKLE = ScorerSettings.variable("trust_pickle")


def params_of(folder: Path, **changes: object) -> TrainParams:
    return TrainParams(**{"concept": "contrast", "base": str(folder), "mode": "import", "num_windows": 1, **changes})


def imported(folder: Path, table: pa.Table | None = None, **changes: object) -> Trained:
    return import_scorer(table, params_of(folder, **changes), CPU)


def logits_of(folder: Path, tokenizer: Path | None = None) -> np.ndarray:
    """Logits [texts, labels] by Transformers alone, one text at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    encode = AutoTokenizer.from_pretrained(str(tokenizer or folder))
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            encoded = encode(text, return_tensors="pt")
            mask = encoded["attention_mask"]
            rows.append(model(input_ids=encoded["input_ids"], attention_mask=mask).logits[0].double().numpy())
    return np.stack(rows)


def assert_scores(trained: Trained, margins: np.ndarray) -> None:
    scorer = load(trained)
    found = score_texts({"a": scorer}, TEXTS)["a"]
    np.testing.assert_allclose(found, expit(margins / scorer.temperature), atol=1e-5)


@pytest.mark.parametrize(("label", "sign"), [("LABEL_1", 1), ("LABEL_0", -1), ("1", 1), ("label_0", -1)])
def test_two_labels_score_as_the_stated_one(tiny_bert: Path, label: str, sign: int) -> None:
    logits = logits_of(tiny_bert)
    assert_scores(imported(tiny_bert, positive_label=label), sign * (logits[:, 1] - logits[:, 0]))


def test_two_labels_and_none_stated_is_asked(tiny_bert: Path) -> None:
    with pytest.raises(LabelNeededError, match=r"LABEL_0 \(0\), LABEL_1 \(1\); state which one means contrast"):
        imported(tiny_bert)
    with pytest.raises(ModelError, match="no label 'x'"):
        imported(tiny_bert, positive_label="x")
    with pytest.raises(ModelError, match="no label '2'"):
        imported(tiny_bert, positive_label="2")


def test_one_output_is_a_logit_and_needs_no_label(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path, num_labels=1)
    assert_scores(imported(folder), logits_of(folder)[:, 0])


def test_a_regression_is_no_probability(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="regression"):
        imported(save_tiny_bert(tmp_path, num_labels=1, problem_type="regression"))


def test_labels_that_exclude_one_another_compete(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names = {0: "other", 1: "contrast", 2: "neither"}
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, id2label=names, num_labels=3)
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(str(find_base("minilm").folder)).save_pretrained(tmp_path)
    logits = logits_of(tmp_path)
    odds = logits[:, 1] - np.logaddexp(logits[:, 0], logits[:, 2])
    assert_scores(imported(tmp_path, positive_label="{concept}"), odds)


def test_labels_that_do_not_exclude_one_another_stand_alone(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path, num_labels=3, problem_type="multi_label_classification")
    assert_scores(imported(folder, positive_label="LABEL_2"), logits_of(folder)[:, 2])


def test_a_folder_for_each_concept_with_one_tokenizer(tmp_path: Path) -> None:
    """The layout of published scorers: <repository>/<concept>, its tokenizer beside or above."""
    for seed, concept in enumerate(("contrast", "hedging")):
        save_tiny_bert(tmp_path / concept, seed=seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(tmp_path / "contrast" / name, tmp_path / name)
        (tmp_path / "hedging" / name).unlink()
    margins = {}
    for concept in ("contrast", "hedging"):
        logits = logits_of(tmp_path / concept, tokenizer=tmp_path)
        margins[concept] = logits[:, 1] - logits[:, 0]
        assert_scores(imported(tmp_path, subfolder=concept, positive_label="1"), margins[concept])
    assert not np.allclose(*margins.values())
    with pytest.raises(ModelError, match=r"no config.json in narrative.*there is one in contrast, hedging"):
        imported(tmp_path, subfolder="narrative", positive_label="1")
    with pytest.raises(ValidationError, match="subfolder"):
        imported(tmp_path / "contrast", subfolder="../hedging", positive_label="1")


def test_a_tokenizer_may_be_named(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        imported(folder, positive_label="1")
    logits = logits_of(folder, tokenizer=find_base("minilm").folder)
    assert_scores(imported(folder, positive_label="1", tokenizer="minilm"), logits[:, 1] - logits[:, 0])


def test_pickled_weights_are_read_on_the_operators_word_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_bert(tmp_path)
    logits = logits_of(folder)
    torch.save(BertForSequenceClassification.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    monkeypatch.delenv(TRUST_PICKLE, raising=False)
    with pytest.raises(ModelError, match=f"pickle file; convert it to safetensors.*{TRUST_PICKLE}=1"):
        imported(folder, positive_label="1")
    monkeypatch.setenv(TRUST_PICKLE, "1")
    trained = imported(folder, positive_label="1")
    assert {Path(name).suffix for name in trained.files} == {".json", ".safetensors"}
    monkeypatch.delenv(TRUST_PICKLE)  # what was stored needs no trust
    assert_scores(trained, logits[:, 1] - logits[:, 0])


def test_what_is_no_complete_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no sequence classifier"):
        import_scorer(None, TrainParams(concept="contrast", mode="import", positive_label="1"), CPU)
    headless = save_tiny_bert(tmp_path / "headless")
    BertForSequenceClassification.from_pretrained(headless).bert.save_pretrained(headless)
    config = json.loads((headless / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (headless / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lacks weights of its classifier: classifier\.bias"):
        imported(headless, positive_label="1")
    short = save_tiny_bert(tmp_path / "short", max_position_embeddings=64)
    with pytest.raises(ModelError, match="reads 64 tokens; windows have up to 130"):
        imported(short, positive_label="1")
    narrow = save_tiny_bert(tmp_path / "narrow", vocab_size=100)
    with pytest.raises(ModelError, match="another model's tokenizer"):
        imported(narrow, positive_label="1")
    model = BertForSequenceClassification.from_pretrained(save_tiny_bert(tmp_path / "broken"))
    torch.nn.init.constant_(model.classifier.weight, float("nan"))
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(ModelError, match=r"not finite: classifier\.weight"):
        imported(tmp_path / "broken", positive_label="1")


def test_without_passages_the_figures_are_null_with_a_reason(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    for table in (None, scorer_passages.slice(0, 0)):
        trained = imported(tiny_bert, table, positive_label="1")
        rows = trained.measures.to_pylist()
        assert {row["metric"]: row["status"] for row in rows} == dict.fromkeys(
            ("scorer.auroc", "scorer.ece", "scorer.brier"), "no_scorer"
        )
        report = json.loads(trained.files["report.json"])
        assert (report["auroc"], report["calibrated"], report["temperature"]) == (None, False, 1.0)
        assert report["reason"]


@pytest.mark.lane(name="series")
def test_passages_calibrate_and_show_a_label_that_is_the_wrong_way_round(
    minilm_training: Trained, scorer_passages: pa.Table, tmp_path: Path
) -> None:
    """A scorer of ours, published as Transformers saves it, imported with the right label and with the wrong one."""
    from safetensors.torch import load

    model = BertForSequenceClassification.from_pretrained(str(find_base("minilm").folder), num_labels=2)
    model.load_state_dict(load(minilm_training.files["weights.safetensors"]), strict=False)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(str(find_base("minilm").folder)).save_pretrained(tmp_path)
    right, wrong = (
        json.loads(imported(tmp_path, scorer_passages, positive_label=label).files["report.json"])
        for label in ("1", "0")
    )
    assert right["auroc"] > 0.8 and right["calibrated"] and "note" not in right
    assert wrong["auroc"] == pytest.approx(1 - right["auroc"])
    assert "is LABEL_0 really the label of the concept?" in wrong["note"]
