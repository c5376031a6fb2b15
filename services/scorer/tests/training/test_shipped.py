"""Scorers that the repository has take the place of training, where they fit this machine."""

import json
from pathlib import Path

import pytest

from poolbench.config import asset_path
from poolbench.steps.scorer import CONFIG, WEIGHTS
from poolbench.storage import Artifacts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training import shipped
from poolbench_scorer.training.shipped import SHIPPED, shipped_scorer

from ..conftest import run

KEYS = sorted(folder.name for folder in asset_path(SHIPPED).iterdir() if folder.is_dir())


def train(service: ScorerService, artifacts: Artifacts, key: str) -> None:
    """Run the task that makes the scorer of a key, for whichever concept it is."""
    config = json.loads((asset_path(SHIPPED) / key / CONFIG).read_text())
    outputs = {"scorer": key, "measures": "scorer.train.measures"}
    run(service, artifacts, "scorer.train", inputs={"passages/scorer": "p"}, outputs=outputs, params=config["params"])


def test_a_shipped_scorer_is_committed_without_training(service: ScorerService, artifacts: Artifacts) -> None:
    key = KEYS[0]
    train(service, artifacts, key)  # passages are not there, so training would fail
    assert artifacts.read(key, WEIGHTS) == (asset_path(SHIPPED) / key / WEIGHTS).read_bytes()
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
