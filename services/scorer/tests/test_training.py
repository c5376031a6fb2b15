"""Training: the signal is learnt, splits hold, files round-trip; scorers that the repository has take its place."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from poolbench.config import asset_path
from poolbench.errors import CellError, ConfigError, InputError, ModelError, UnknownModelError
from poolbench.model_folders.bases import find_base
from poolbench.steps.scorer import CONFIG, TRAIN, WEIGHTS, TrainParams
from poolbench.storage import Artifacts
from poolbench_scorer.classifiers.scorer import Scorer, cut_model, load_classifier, load_scorer, read_tokens
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training import shipped
from poolbench_scorer.training.examples import (
    LabelledPassages,
    build_examples,
    couple_passages,
    differs,
    read_passages,
    split_validation,
)
from poolbench_scorer.training.fit import Epoch, best_epoch, couple_batches, stale_epochs, warmup_then_decay
from poolbench_scorer.training.report import build_validation
from poolbench_scorer.training.shipped import SHIPPED, shipped_scorer
from poolbench_scorer.training.train import Trained, train_scorer

from .conftest import load, report_of, run, save_tiny_bert

CPU = torch.device("cpu")


def settings(base: Path, **changes: object) -> TrainParams:
    """Quick settings on a tiny base."""
    fixed = {"concept": "contrast", "base": str(base), "mode": "head", "epochs": 1, "num_windows": 1}
    return TrainParams(**{**fixed, **changes})


def test_planted_signal_is_separated_on_held_out_passages(
    minilm_training: Trained, minilm_scorer: Scorer, test_passages: pa.Table
) -> None:
    labels = np.array(test_passages["label"].to_pylist())
    scores = score_texts({"contrast": minilm_scorer}, test_passages["text"].to_pylist())["contrast"]
    assert scores[labels == 1].mean() > scores[labels == 0].mean() + 0.4
    report = report_of(minilm_training)
    assert report["auroc"] > 0.8
    assert report["ece_after"] <= report["ece_before"]
    rows = {(row["metric"], row["params"]): row for row in minilm_training.measures.to_pylist()}
    assert rows["scorer.auroc", "{}"]["value"] == report["auroc"]
    assert rows["scorer.auroc", "{}"]["ci_low"] <= report["auroc"] <= rows["scorer.auroc", "{}"]["ci_high"]


def test_only_trained_tensors_are_stored(minilm_training: Trained) -> None:
    tensors = load_tensors(minilm_training.files["weights.safetensors"])
    names = {name.split(".layer.")[-1].split(".")[0] for name in tensors}
    assert names == {"5", "bert", "classifier"}
    assert len(minilm_training.files["weights.safetensors"]) < 10_000_000
    config = json.loads(minilm_training.files["config.json"])
    assert config["base_revision"] == find_base("minilm").revision
    assert config["params"]["learning_rate"] == 1e-3


def test_training_twice_gives_the_same_bytes_whatever_the_global_seed(
    tiny_bert: Path, scorer_passages: pa.Table
) -> None:
    torch.manual_seed(1)
    first = train_scorer(scorer_passages, settings(tiny_bert), CPU)
    state = torch.random.get_rng_state()
    second = train_scorer(scorer_passages, settings(tiny_bert), CPU)
    assert first.files == second.files
    assert torch.equal(state, torch.random.get_rng_state())
    other = train_scorer(scorer_passages, settings(tiny_bert, seed=1), CPU)
    assert other.files["weights.safetensors"] != first.files["weights.safetensors"]


def test_full_mode_trains_every_layer(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    trained = train_scorer(scorer_passages, settings(tiny_bert, mode="full", learning_rate=1e-3), CPU)
    scorer = load(trained)
    before = load_classifier(find_base(str(tiny_bert)), num_labels=2)
    encoder, head = cut_model(before, 0)
    words = "embeddings.word_embeddings.weight"
    assert not torch.equal(scorer.encoder.state_dict()[words], encoder.state_dict()[words])
    for name, tensor in head.state_dict().items():
        if "query.weight" in name:
            assert not torch.equal(scorer.head.state_dict()[name], tensor)


@pytest.mark.parametrize("mode", ["head", "full"])
def test_a_scorer_on_some_layers_scores_as_the_base_cut_there(
    tiny_bert: Path, scorer_passages: pa.Table, mode: str
) -> None:
    trained = train_scorer(scorer_passages, settings(tiny_bert, mode=mode, num_layers=1), CPU)
    scorer = load(trained)
    texts = [" ".join(text.split()[:60]) for text in scorer_passages["text"].to_pylist()[:5]]
    scores = score_texts({"contrast": scorer}, texts)["contrast"]

    oracle = load_classifier(find_base(str(tiny_bert)), num_labels=2, num_hidden_layers=1)
    oracle.load_state_dict(load_tensors(trained.files["weights.safetensors"]), strict=False)
    tokens = AutoTokenizer.from_pretrained(tiny_bert)
    temperature = json.loads(trained.files["config.json"])["temperature"]
    for text, score in zip(texts, scores, strict=True):
        ids = tokens(text, return_tensors="pt")
        assert ids["input_ids"].shape[1] < 128, "of a longer text a score is the mean over windows"
        with torch.no_grad():
            expected = (oracle(**ids).logits / temperature).softmax(-1)[0, 1].item()
        assert score == pytest.approx(expected, abs=1e-5)


def test_more_layers_than_the_base_has_are_refused(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    with pytest.raises(ModelError, match=r"num_layers 99: the base has \d; ask for 1"):
        train_scorer(scorer_passages, settings(tiny_bert, num_layers=99), CPU)
    with pytest.raises(ModelError, match=r"2 trained layers: of the base 1 are used; ask for 1\.\.1"):
        train_scorer(scorer_passages, settings(tiny_bert, num_layers=1, trained_layers=2), CPU)


def test_auto_mode_follows_the_device() -> None:
    params = TrainParams(concept="contrast")
    head, full = params.resolved(on_gpu=False), params.resolved(on_gpu=True)
    assert (head.mode, head.epochs, head.learning_rate) == ("head", 6, 1e-3)
    assert (full.mode, full.epochs, full.learning_rate) == ("full", 3, 2e-5)


def test_validation_shares_no_group_and_couples_are_never_of_one_class(scorer_passages: pa.Table) -> None:
    passages = read_passages(scorer_passages, "scorer")
    train, held_out = split_validation(passages, 0.2, seed=3)
    assert not set(passages.groups[train]) & set(passages.groups[held_out])
    assert len(train) + len(held_out) == len(passages.ids)
    assert 0.15 < len(held_out) / len(passages.ids) < 0.3
    assert set(passages.labels[held_out].tolist()) == {0, 1}
    labels = np.array([1, 0, 1, 1, 0])
    couples = couple_passages(labels, ["p", "p", None, None, None], seed=0)
    assert couples[0] == (0, 1)
    assert sorted(couples[1:]) == [(2, 4), (3, 4)]


def test_windows_that_do_not_show_the_rewrite_are_left_out(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    assert differs((1, 2, 9, 3), (0, 1, 2, 3, 4))
    assert not differs((1, 2, 3), (0, 1, 2, 3, 4))
    passages = read_passages(scorer_passages, "scorer")
    examples = build_examples(passages, read_tokens(find_base("minilm")), settings(tiny_bert, num_windows=3))
    couples = [(examples.windows[a], examples.windows[b]) for a, b in examples.couples]
    assert all(positive != negative for positive, negative in couples)
    labels = {(int(examples.labels[a]), int(examples.labels[b])) for a, b in examples.couples}
    assert labels == {(1, 0)}


def test_windows_are_of_the_class_that_the_word_rule_counts_them_to() -> None:
    """Passages of frustration, each with one word of it among 60 others: about half of the windows hold it."""
    positives = [f"{'house ' * (3 * row)}terrible {'valley ' * (60 - 3 * row)}" for row in range(20)]
    texts = positives + ["meadow " * 60] * 20
    labels, ids = np.repeat([1, 0], 20), [f"p{row}" for row in range(40)]
    passages = LabelledPassages(ids, texts, labels, [None] * 40, np.arange(40))
    tokens, plain = read_tokens(find_base("minilm")), TrainParams(concept="frustration", degenerate_share=0.0)
    shown: dict[int | None, list[bool]] = {}
    for version in (None, 1):
        params = plain.model_copy(update={"rule": version})
        examples, validation = build_examples(passages, tokens, params), build_validation(passages, tokens, params)
        taught = [examples.windows[positive] for positive, _ in examples.couples]
        shown[version] = ["terrible" in tokens.text(window) for window in taught]
        held_out = ["terrible" in tokens.text(window) for window in validation.windows]
        assert (validation.labels.tolist() == held_out) is (version == 1)
    assert len(shown[None]) == 80 and sum(shown[None]) == len(shown[1]) < 80 and all(shown[1])


def test_batches_hold_whole_couples_once(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    passages = read_passages(scorer_passages, "scorer")
    examples = build_examples(passages, read_tokens(find_base("minilm")), settings(tiny_bert))
    batches = couple_batches(examples, 8, np.random.default_rng(0))
    assert all(len(batch) <= 8 for batch in batches)
    drawn = [(batch[at], batch[at + 1]) for batch in batches for at in range(0, len(batch), 2)]
    assert sorted(drawn) == sorted(examples.couples)


def test_the_schedule_warms_up_and_patience_counts_epochs_since_the_best() -> None:
    factor = warmup_then_decay(100, 0.1)
    assert [factor(step) for step in (0, 4, 9, 10, 55, 100)] == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.5, 0.0])
    epochs = [Epoch(1.0, auroc, nll) for auroc, nll in ((0.8, 0.5), (0.9, 0.4), (0.9, 0.5), (0.85, 0.3))]
    assert best_epoch(epochs) is epochs[1]
    assert [stale_epochs(epochs[: count + 1]) for count in range(4)] == [0, 0, 1, 2]


def test_training_ends_early_and_keeps_the_best_epoch(tiny_bert: Path, scorer_passages: pa.Table) -> None:
    """A far too high learning rate makes some epoch worse than the one before."""
    params = settings(tiny_bert, epochs=6, patience=1, learning_rate=0.5)
    report = report_of(train_scorer(scorer_passages, params, CPU))
    ran, best = len(report["epochs"]), report["best_epoch"]
    assert ran == min(6, best + 1)
    figures = [(round(one["validation_auroc"], 3), -one["validation_nll"]) for one in report["epochs"]]
    assert figures[best - 1] == max(figures)


def test_the_report_has_calibration_before_and_after(minilm_training: Trained) -> None:
    report = report_of(minilm_training)
    rows = {(row["metric"], row["params"]): row["value"] for row in minilm_training.measures.to_pylist()}
    for side, calibrated in (("before", "false"), ("after", "true")):
        for metric in ("ece", "brier"):
            value = rows[f"scorer.{metric}", f'{{"calibrated": {calibrated}}}']
            assert 0 <= value <= 1 and report[f"{metric}_{side}"] == value
    assert report["calibrated"] is True


def test_passages_of_another_split_or_of_one_document_are_refused(
    test_passages: pa.Table, scorer_passages: pa.Table
) -> None:
    with pytest.raises(InputError, match="split scorer only"):
        train_scorer(test_passages, TrainParams(concept="contrast"), CPU)
    column = pa.array(["planted-scorer/one"] * scorer_passages.num_rows)
    table = scorer_passages.set_column(scorer_passages.schema.get_field_index("doc_id"), "doc_id", column)
    with pytest.raises(CellError, match="cannot be split"):
        train_scorer(table, TrainParams(concept="contrast"), CPU)


@pytest.mark.parametrize(
    ("keep", "num", "status"), [([1], 99, "one_class"), ([0, 1], 12, "too_few"), ([], 0, "no_scorer")]
)
def test_too_few_passages_are_a_status(scorer_passages: pa.Table, keep: list[int], num: int, status: str) -> None:
    wanted = pc.is_in(scorer_passages["label"], pa.array(keep, pa.int8()))
    table = scorer_passages.filter(wanted).slice(0, num)
    with pytest.raises(CellError) as caught:
        train_scorer(table, TrainParams(concept="contrast"), CPU)
    assert caught.value.status == status


def test_unknown_bases_and_wrong_parameters_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="minilm"):
        find_base("./minlm")
    with pytest.raises(ModelError, match=r"config\.json"):
        find_base(str(tmp_path))
    with pytest.raises(ConfigError, match="shortest <= longest"):
        TRAIN.parse({"concept": "contrast", "window_tokens": (64, 24)})


def test_a_scorer_over_other_weights_is_refused(minilm_training: Trained) -> None:
    config = json.loads(minilm_training.files["config.json"]) | {"base_revision": "sha256-0"}
    files = minilm_training.files | {"config.json": json.dumps(config).encode()}
    with pytest.raises(ModelError, match="trained on minilm sha256-0"):
        load_scorer(files.__getitem__, list(files), CPU)
    with pytest.raises(InputError, match=r"without config\.json"):
        load_scorer({}.__getitem__, ["x"], CPU)


def test_a_base_that_lacks_weights_below_its_head_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    parts = {"head": ("classifier.", ".pooler."), "a block": ("layer.1.attention.self.query.weight",)}
    for name, lacking in parts.items():
        kept = {key: each for key, each in weights.items() if not any(part in key for part in lacking)}
        assert len(kept) < len(weights)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        if name == "head":
            load_classifier(find_base(str(folder)), num_labels=2)
            continue
        with pytest.raises(ModelError, match=r"lacks weights .*layer\.1\.attention\.self\.query\.weight"):
            load_classifier(find_base(str(folder)), num_labels=2)


def test_a_base_that_was_replaced_is_another_one(tmp_path: Path) -> None:
    """Its name and the size of its files stay. One that is loaded keeps its weights."""
    before = find_base(str(save_tiny_bert(tmp_path / "bert")))
    model = load_classifier(before, num_labels=2)
    own = {name: weight.clone() for name, weight in model.named_parameters()}
    save_tiny_bert(tmp_path / "other", seed=1)
    with (tmp_path / "bert" / "model.safetensors").open("r+b") as content:
        content.write((tmp_path / "other" / "model.safetensors").read_bytes())
    assert find_base(str(tmp_path / "bert")).revision not in ("", before.revision)
    assert all(torch.equal(weight, own[name]) for name, weight in model.named_parameters())


KEYS = sorted(folder.name for folder in asset_path(SHIPPED).iterdir() if folder.is_dir())


def train(service: ScorerService, artifacts: Artifacts, key: str) -> None:
    """Run the task that makes the scorer of a key, for whichever concept it is."""
    config = json.loads((asset_path(SHIPPED) / key / CONFIG).read_text())
    outputs = {"scorer": key, "measures": "scorer.train.measures"}
    run(service, artifacts, "scorer.train", inputs={"passages/scorer": "p"}, outputs=outputs, params=config["params"])


def test_a_shipped_scorer_is_committed_without_training(service: ScorerService, artifacts: Artifacts) -> None:
    key = KEYS[0]
    train(service, artifacts, key)  # passages are not there, so training would fail
    scorer = shipped_scorer(key)
    assert scorer is not None and artifacts.read(key, WEIGHTS) == scorer.files[WEIGHTS]
    measures = artifacts.read_table("scorer.train.measures").to_pylist()
    assert {row["metric"] for row in measures} == {"scorer.auroc", "scorer.ece", "scorer.brier"}
    producer = artifacts.manifest(key).producer
    assert "work" not in producer, "estimates would take its time for that of training"


def test_a_scorer_of_other_weights_is_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_scorer("scorer.train.unknown") is None
    key, folder = KEYS[0], tmp_path / SHIPPED / KEYS[0]
    folder.mkdir(parents=True)
    for file in (asset_path(SHIPPED) / key).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(shipped, "assets_folder", lambda: tmp_path)
    assert shipped_scorer(key) is not None
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"base_revision": "sha256-other"}))
    assert shipped_scorer(key) is None
    (folder / CONFIG).write_text(json.dumps(config | {"base": "no-such-base"}))
    assert shipped_scorer(key) is None
