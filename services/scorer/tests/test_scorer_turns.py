"""Requests go before tasks: one is answered in the middle of a training, and does not change it."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pyarrow as pa
from fastapi.testclient import TestClient

from poolbench.cancellation import between_steps
from poolbench.storage.artifacts import Artifacts
from poolbench_scorer.service import ScorerService
from poolbench_scorer.training.train import Trained

from .conftest import run


def _train(service: ScorerService, artifacts: Artifacts, base: Path, name: str) -> dict[str, str]:
    """Train as a task; return the hashes of the scorer's files."""
    params = {"concept": "contrast", "base": str(base), "mode": "head", "epochs": 2, "num_windows": 1}
    run(
        service,
        artifacts,
        "scorer.train",
        inputs={"passages/scorer": "p.scorer"},
        outputs={"scorer": f"scorer.train.{name}", "measures": f"scorer.train.{name}m"},
        params=params,
    )
    return {file: entry.sha256 for file, entry in artifacts.manifest(f"scorer.train.{name}").files.items()}


def test_a_request_is_answered_between_two_steps_of_a_training(
    client: TestClient,
    service: ScorerService,
    artifacts: Artifacts,
    tiny_bert: Path,
    scorer_passages: pa.Table,
    minilm_training: Trained,
) -> None:
    artifacts.write_table("p.scorer", scorer_passages)
    artifacts.write("scorer.train.k", minilm_training.files)
    undisturbed = _train(service, artifacts, tiny_bert, "a")
    answers: list[httpx.Response] = []
    steps = 0

    def ask() -> None:
        answers.append(client.post("/score", json={"texts": ["However."], "scorer": "scorer.train.k"}))

    asking = threading.Thread(target=ask, daemon=True)

    def between() -> None:
        """Start a request at a late step, and let the training go on when the request waits for its turn."""
        nonlocal steps
        steps += 1
        if steps == 20:
            asking.start()
            pause = threading.Event()
            while asking.is_alive() and not service._turns._num_requests:
                pause.wait(0.005)
        if steps == 21:
            asking.join()

    with between_steps(between):
        disturbed = _train(service, artifacts, tiny_bert, "b")
    assert steps > 21
    assert [answer.status_code for answer in answers] == [200]
    assert disturbed == undisturbed
