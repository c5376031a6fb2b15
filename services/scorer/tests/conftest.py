"""Small real parts: planted passages, a tiny BERT with MiniLM's tokenizer, one scorer on MiniLM itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from fastapi.testclient import TestClient
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from transformers.utils import logging as transformers_logging

from poolbench.contracts.tasks import Task
from poolbench.http.api import build_api
from poolbench.model_folders.bases import find_base
from poolbench.model_folders.folders import MODEL_FOLDERS
from poolbench.steps.scorer import TrainParams
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_corpora.planted import build_planted
from poolbench_scorer.classifiers.scorer import Scorer, load_scorer
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training.train import Trained, train_scorer

CPU = torch.device("cpu")
transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def _folders_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Requests may name the models that tests make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MODEL_FOLDERS, str(tmp_path_factory.getbasetemp()))
        yield


def load(trained: Trained) -> Scorer:
    """The scorer in training's files."""
    return load_scorer(trained.files.__getitem__, list(trained.files), CPU)


@pytest.fixture(scope="session")
def planted() -> pa.Table:
    """Passages of the concept contrast, all splits."""
    return build_planted("contrast", num_train=2, num_test=60, num_scorer=80, seed=0)


@pytest.fixture(scope="session")
def scorer_passages(planted: pa.Table) -> pa.Table:
    return planted.filter(pc.equal(planted["split"], "scorer"))


@pytest.fixture(scope="session")
def test_passages(planted: pa.Table) -> pa.Table:
    return planted.filter(pc.equal(planted["split"], "test"))


@pytest.fixture(scope="session")
def minilm_training(scorer_passages: pa.Table) -> Trained:
    """A scorer of contrast on MiniLM, trained in mode head in a few seconds."""
    return train_scorer(scorer_passages, TrainParams(concept="contrast", mode="head", num_windows=2), CPU)


@pytest.fixture(scope="session")
def minilm_scorer(minilm_training: Trained) -> Scorer:
    return load(minilm_training)


def save_tiny_bert(folder: Path, *, num_labels: int = 2, seed: int = 0, **config: object) -> Path:
    """A random BERT classifier of 3 narrow layers, with MiniLM's vocabulary."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(**sizes, num_labels=num_labels, **config))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(find_base("minilm").folder)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))


def report_of(trained: Trained) -> dict:
    """The report among training's files."""
    return json.loads(trained.files["report.json"])


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


@pytest.fixture
def service(artifacts: Artifacts) -> ScorerService:
    return ScorerService(lambda: artifacts)


@pytest.fixture
def client(service: ScorerService) -> Iterator[TestClient]:
    with TestClient(build_api(service, "secret"), headers={"Authorization": "Bearer secret"}) as running:
        yield running


def run(service: ScorerService, artifacts: Artifacts, kind: str, **parts: dict) -> TaskIO:
    """Executes one task as the worker does."""
    task = Task(kind=kind, **parts)
    io = TaskIO(task, artifacts)
    service.handlers[kind](task, io)
    return io
