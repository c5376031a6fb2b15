"""The command line, and artifacts of a steering plan made by hand through the real storage classes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.loop_bench import Bench
from tests.waiting import PATIENCE_S
from typer.testing import CliRunner, Result

from poolbench.config import ModelRef
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_driver.cli import app, command_line
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.steering import NULLS, UNSTEERED

WIDTH = 4
STRENGTHS = {"strengths": [0.06, 0.125, 0.25, 0.5], "null_strengths": [0.06, 0.125, 0.25], "reference_strength": 0.125}
BUDGET = {"num_openings": 6, "num_bootstrap": 20, **STRENGTHS}
Score = Callable[[str, int, float, str], float]


class SteeredArtifacts:
    """A plan and its artifacts; a score is ``score(direction_key, opening, strength, scorer)``.

    Texts, and every passage, hold ``SECRET``; scores carry them along in a column that must not leave the store.
    """

    SECRET = "SECRET-TEXT"

    def __init__(self, folder: Path, plan: ConceptsPlan) -> None:
        self.plan, self.artifacts, self.rng = plan, Artifacts(FolderStore(folder)), np.random.default_rng(0)

    def write(self, score: Score, *, gate: float = 1.0) -> SteeredArtifacts:
        """Writes every artifact that rows and releases read."""
        budget = self.plan.scope.config.budget
        steering = self.plan.steering
        assert steering is not None
        for probes in self.plan.probes.concepts.values():
            self.probes(probes)
        for directions_of in steering.neighbour_directions.concepts.values():
            self.directions(directions_of.values())
        for concept, own in steering.texts.concepts.items():
            scorers = self.plan.scope.scorers_of(own.concept)
            for name, made in own.texts.items():
                keys = (*made, steering.scores.concepts[concept][name])
                nulls = [f"{NULLS}/null_{n:03d}" for n in range(budget.num_nulls)]
                directions = nulls if name == NULLS else [f"{name}/{self.plan.scope.config.steering.direction}"]
                self.texts(
                    keys, directions, budget.null_strengths if name == NULLS else budget.strengths, scorers, score
                )
        unsteered = (*steering.unsteered.texts, steering.scores.unsteered)
        self.texts(unsteered, [UNSTEERED], [0.0], list(steering.scorers.concepts), score)
        for concept, prompted in steering.prompted.concepts.items():
            for name, keys in prompted.texts.items():
                self.texts((*keys, prompted.scores[name]), [name], [0.0], [concept], score)
        for scorer in steering.scorers.concepts.values():
            means = [Measure.of("scorer.positive_mean", 0.9), Measure.of("scorer.negative_mean", 0.1)]
            verdict = Measure("scorer.gate", gate, reason=None if gate else "b: .52", params={"part": "verdict"})
            self._measures(scorer.gate, verdict, *means)
            self._measures(scorer.training, Measure.of("scorer.auroc", 0.95))
        return self

    def texts(
        self,
        keys: tuple[str, str, str],
        directions: Sequence[str],
        strengths: Sequence[float],
        scorers: Sequence[str],
        score: Score,
    ) -> None:
        """Writes texts, fluency and scores of some directions: what the steerer and the scorer would."""
        texts, fluency, scores = [], [], []
        steering = self.plan.scope.config.steering
        for key in directions:
            for strength in strengths:
                for opening in range(self.plan.scope.config.budget.num_openings):
                    for sample in range(steering.num_samples):
                        row = self._text(key, strength, opening, sample)
                        texts.append(row)
                        fluency.append({"text_id": row["text_id"], "mean_nll": 2.0, "num_tokens": 20})
                        for scorer in scorers:
                            value = score(key, opening, strength, scorer)
                            scores.append({"text_id": row["text_id"], "scorer": scorer, "score": value})
        sampled = steering.temperature > 0
        self._write(keys[0], texts, pa.schema([*t.TEXTS, *t.SAMPLES]) if sampled else t.TEXTS)
        self._write(keys[1], fluency, t.FLUENCY)
        self._write(keys[2], scores, t.SCORES, leaks=True)

    def _text(self, key: str, strength: float, opening: int, sample: int) -> dict[str, Any]:
        steered = key != UNSTEERED
        return {
            "text_id": f"{key}|{strength}|{opening}|{sample}",
            "prompt_id": f"neutral-54-{opening:02d}",
            "prompt": f"Opening {opening}",
            "text": f" goes on along {key} at {strength}, {self.SECRET}",
            "direction_key": key,
            "strength": strength,
            "alpha": 50 * strength,
            "layer": self.plan.scope.steering_layer,
            "num_tokens": 20,
            "repeated_4grams": 0.0,
            "vector_hash": "0" * 16 if steered else None,
            "positions_changed": 20 if steered else 0,
            "positions_expected": 20 if steered else 0,
            "sample": sample,
            "sample_seed": 7 + sample,
            "temperature": self.plan.scope.config.steering.temperature,
        }

    def probes(self, probes: ConceptProbes) -> None:
        """Writes measures, directions and scores of a measured concept."""
        for (strategy, _), key in probes.measures.items():
            d1 = Measure.of("d1.auroc", 0.9 if strategy == "A1_mean" else 0.8, (0.7, 0.95), coverage=1.0, n=40)
            self._measures(key, d1, Measure.of("d1.auroc_permuted", 0.5))
        for key in probes.scores.values():
            row = {"passage_id": "p1", "split": "train", "fold": 0, "label": 1, "group": "g", "score": 0.5}
            self._write(key, [row], t.PROBE_SCORES, leaks=True)
        self.directions(probes.directions.values())

    def directions(self, keys: Iterable[str]) -> None:
        """Writes directions of a concept."""
        names = dict.fromkeys(["C1", "C2", *self.plan.scope.config.steering.further])
        for key in keys:
            self._write(key, [self._direction(name) for name in names], t.directions_schema(WIDTH))

    def _direction(self, name: str) -> dict[str, Any]:
        vector = self.rng.normal(size=WIDTH)
        return {"direction_id": name, "vector": list(vector / np.linalg.norm(vector)), "raw_norm": 1.0, "status": None}

    def _measures(self, key: str, *measures: Measure) -> None:
        self._write(key, [measure.to_row() for measure in measures], t.MEASURES)

    def _write(self, key: str, rows: list[dict[str, Any]], schema: pa.Schema, *, leaks: bool = False) -> None:
        table = t.table_from_rows(rows, schema)
        if leaks:
            table = table.append_column("text", pa.array([self.SECRET] * len(rows)))
        self.artifacts.write_table(key, table, producer={"wall_s": 2.0})


@pytest.fixture(autouse=True, scope="module")
def quicker() -> Iterator[None]:
    """Leave tables uncompressed, whose number is large and whose size is small, and write planted passages once."""
    from poolbench_driver.suites.planted import register

    def to_bytes(table: pa.Table) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poolbench.storage.artifacts.table_to_bytes", to_bytes)
        patch.setattr(register, "planted_passages", cache(register.planted_passages))
        yield


@pytest.fixture(scope="session")
def steered_in() -> Callable[..., SteeredArtifacts]:
    """Makes plans with a store: ``steered_in(folder, concepts=[...], steering={...}, budget={...})``."""

    def make(
        folder: Path,
        *,
        strategies: Sequence[str] = ("A1_mean", "L5_keyword"),
        absent: dict[str, str] | None = None,
        budget: dict[str, Any] | None = None,
        **settings: Any,
    ) -> SteeredArtifacts:
        steering = {"temperature": 0.0} | settings.pop("steering", {})
        chosen = {"preset": "demo", "concepts": ["contrast"], "layers": [2], "steering": steering, **settings}
        config = load_run_config(None, {**chosen, "budget": BUDGET | (budget or {})})
        model = ModelInfo(ModelRef("demo", "somewhere", "local-0", "float32"), num_blocks=6, width=WIDTH)
        specs = [STRATEGIES.get(name) for name in strategies]
        return SteeredArtifacts(folder, make_plan(Scope(config, model, specs, absent=absent or {})))

    return make


@pytest.fixture
def steered(steered_in: Callable[..., SteeredArtifacts], tmp_path: Path) -> Callable[..., SteeredArtifacts]:
    """As ``steered_in``, in a folder of the test."""
    return partial(steered_in, tmp_path / "store")


Driver = Callable[..., CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A cluster of which only the folders exist: store and broker work, no service answers."""
    folders = {
        "POOLBENCH_STATE": str(tmp_path / "state"),
        "POOLBENCH_STORE": str(tmp_path / "store"),
        "POOLBENCH_BROKER": f"filesystem://{tmp_path}/queue",
    }
    return {**os.environ, **folders, "POOLBENCH_HTTP": "http://127.0.0.1:9", "POOLBENCH_TOKEN": "secret-token"}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Driver:
    """``driver(environment, *arguments)``: the command line from ``main`` on, in this process, which is far quicker.

    What ``main`` does not turn into a line and an exit code fails the test.
    """
    from poolbench_driver.cli import main

    def run(environment: dict[str, str], *arguments: str) -> CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setattr("os.environ", environment)
            patch.setattr(sys, "argv", ["poolbench-driver", *arguments])
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        shown = capsys.readouterr()
        return CompletedProcess(arguments, int(ended.value.code or 0), shown.out, shown.err)

    return run


def invoke(*arguments: str, answer: str = "") -> Result:
    """Run a command in this process, and return what it printed and what it returned or raised.

    The other commands are not built, which would take far longer than most commands.
    """
    with patch("typer.testing._get_command", lambda app: command_line(arguments[0])):
        return CliRunner().invoke(app, arguments, input=answer, standalone_mode=False)


def invoked(*arguments: str, answer: str = "") -> Result:
    """As `invoke`, and raise what the command raised."""
    done = invoke(*arguments, answer=answer)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def cli(driver: Driver, environment: dict[str, str]) -> Driver:
    """``cli(*arguments)``: the command line in the environment of the test."""
    return partial(driver, environment)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    if made.consumer is not None:
        made.consumer.stop.set()
        made.consumer.join(PATIENCE_S)


@pytest.fixture
def complete(bench: Bench, steered: Callable[..., SteeredArtifacts]) -> tuple[SteeredArtifacts, dict[str, pa.Table]]:
    """Every artifact of a plan, and a worker that makes the prober's again from copies."""
    made = steered().write(lambda key, opening, strength, scorer: 0.3 + 0.1 * strength)
    keys = {key for task in made.plan.tasks.values() for key in task.outputs.values()} | set(made.plan.local)
    for key in keys:
        if not made.artifacts.exists(key):
            made.artifacts.write_table(key, pa.table({"unread": [1]}))
    copies = {key: made.artifacts.read_table(key) for key in keys}

    def copy(task: Task, io: TaskIO) -> None:
        for role in list(io.missing):
            io.write_table(role, copies[task.outputs[role]])

    bench.artifacts = made.artifacts
    bench.service.handlers = {task.kind: copy for task in made.plan.tasks.values()}
    return made, copies
