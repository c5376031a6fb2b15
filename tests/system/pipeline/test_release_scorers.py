"""Releases of scorers: Transformers alone loads them and gives the scores of the scorer service."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from poolbench.config import ModelRef
from poolbench.errors import NotFoundError
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.scorer import TrainParams
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_corpora.planted import build_planted
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.release.scorers import export_scorers
from poolbench_driver.release.source import Export
from poolbench_driver.results import result_table
from poolbench_driver.stages.plan import make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_scorer.classifiers.scorer import load_scorer
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.training.imported import import_scorer
from poolbench_scorer.training.train import Trained, train_scorer

pytestmark = pytest.mark.lane(name="series")

CPU = torch.device("cpu")
TEXTS = ["The tide was high. However, no boat sailed.", "Rain.", "Although it rained, they went out to sea."]


def export_of(folder: Path, **settings: Any) -> Export:
    chosen = {"preset": "demo", "concepts": ["contrast"], "layers": [2], **settings}
    config = load_run_config(None, chosen)
    model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=4)
    plan = make_plan(Scope(config, model, [STRATEGIES.get("A1_mean")]))
    run = create_run(folder / "runs", config)
    write_table(run, "results", result_table([]))
    artifacts = Artifacts(FolderStore(folder / "store"))
    return Export(run, plan, artifacts, config.concepts, "apache-2.0", "poolbench-driver export scorers")


def stored(export: Export, trained: Trained) -> dict[str, float]:
    """Write the scorer into the store; return its scores by text."""
    export.artifacts.write(export.plan.steering.scorers.concepts["contrast"].scorer, trained.files)
    scorer = load_scorer(trained.files.__getitem__, list(trained.files), CPU)
    return dict(zip(TEXTS, score_texts({"contrast": scorer}, TEXTS)["contrast"].tolist(), strict=True))


def logits_of(folder: Path) -> dict[str, torch.Tensor]:
    """Logits by Transformers alone, from an exported folder; every weight of the model must be in it."""
    encode = AutoTokenizer.from_pretrained(str(folder))
    model, loaded = AutoModelForSequenceClassification.from_pretrained(str(folder), output_loading_info=True)
    assert not any(loaded[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return {text: model.eval()(**encode(text, return_tensors="pt")).logits[0].double() for text in TEXTS}


@pytest.mark.parametrize(("mode", "num_layers"), [("head", None), ("head", 3), ("full", 1)])
def test_exported_scorers_give_the_same_scores(tmp_path: Path, mode: str, num_layers: int | None) -> None:
    passages = build_planted("contrast", num_train=2, num_test=2, num_scorer=40, seed=0)
    passages = passages.filter([split == "scorer" for split in passages["split"].to_pylist()])
    params = TrainParams(concept="contrast", mode=mode, num_windows=1, epochs=1, num_layers=num_layers)
    export = export_of(tmp_path)
    expected = stored(export, train_scorer(passages, params, CPU))
    export_scorers(export, tmp_path / "out")
    folder = tmp_path / "out/contrast"
    found = {text: logits.softmax(-1)[1].item() for text, logits in logits_of(folder).items()}
    assert found == pytest.approx(expected, abs=1e-5)
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "not_contrast", "1": "contrast"}
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["temperature_applied"] and meta["base"] == "minilm"
    assert "| contrast | minilm |" in (tmp_path / "out/README.md").read_text()


def test_an_exported_scorer_is_imported_again(tmp_path: Path) -> None:
    passages = build_planted("contrast", num_train=2, num_test=2, num_scorer=40, seed=0)
    passages = passages.filter([split == "scorer" for split in passages["split"].to_pylist()])
    trained = train_scorer(passages, TrainParams(concept="contrast", mode="head", num_windows=1, epochs=1), CPU)
    export = export_of(tmp_path)
    expected = stored(export, trained)
    export_scorers(export, tmp_path / "out")
    params = {"concept": "contrast", "mode": "import", "base": str(tmp_path / "out"), "subfolder": "contrast"}
    again = import_scorer(None, TrainParams(**params, positive_label="contrast"), CPU)
    other = export_of(tmp_path / "other")
    assert stored(other, again) == pytest.approx(expected, abs=1e-5)
    export_scorers(other, tmp_path / "again")  # an import goes out as it came
    assert {text: x.softmax(-1)[1].item() for text, x in logits_of(tmp_path / "again/contrast").items()} == (
        pytest.approx(expected, abs=1e-5)
    )


def test_a_run_without_scorers_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no scorer in the store"):
        export_scorers(export_of(tmp_path), tmp_path / "out")
    with pytest.raises(NotFoundError, match="measured D1 alone"):
        export_scorers(export_of(tmp_path, metrics=["d1"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
