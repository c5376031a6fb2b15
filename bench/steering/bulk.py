"""D2 of one concept from end to end, through the services' own handlers and an object store, by stage.

19 directions (one per strategy; random here, because the work is the same), 12 strengths, 10 openings, in the driver's
portions of four strategies, one after the other. A cluster overlaps the stages; here they are separate.
"""

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save as save_tensors

from poolbench.config import BUDGETS, layer_at_depth
from poolbench.contracts.gates import GatedScorer
from poolbench.contracts.tables import CALIBRATION, directions_schema, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.pooling.registry import strategies_of
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.texts import load_openings
from poolbench.worker.taskio import TaskIO
from poolbench_driver.suites.poolbench.measures.grids import SteeredTables
from poolbench_driver.suites.poolbench.measures.steering import d2_measures
from poolbench_scorer.service import ScorerService
from poolbench_steerer.service import SteererService
from steering.batches import unit_vectors
from steering.scorers import random_scorers

STRATEGIES_PER_TASK = 4
NUM_OPENINGS = 10
#: The concept's own scorer and, for D3, those of its two neighbours.
NUM_SCORERS = 3
PARTS = ("texts", "scores", "fluency")


@dataclass(frozen=True)
class Bulk:
    """The amount of work for a concept."""

    model: str
    tokens: int = 64
    num_strategies: int = len(strategies_of("card"))
    strengths: tuple[float, ...] = BUDGETS["card"].strengths
    num_openings: int = NUM_OPENINGS

    @property
    def names(self) -> list[str]:
        """Return the strategies' ids."""
        return [spec.id for spec in strategies_of("card")][: self.num_strategies]

    @property
    def portions(self) -> Iterator[list[str]]:
        """Yield as many strategies as one task takes."""
        for start in range(0, self.num_strategies, STRATEGIES_PER_TASK):
            yield self.names[start : start + STRATEGIES_PER_TASK]


@dataclass
class Stages:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to `stage`."""
        began = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - began


class StagedIO(TaskIO):
    """A task's input and output that records when each of its own stages last reported."""

    def __init__(self, task: Task, artifacts: Artifacts) -> None:
        super().__init__(task, artifacts)
        self.began = time.perf_counter()
        self.last: dict[str, float] = {}

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Keep the time of the latest report by its note."""
        self.last[note] = time.perf_counter()


def measure_bulk(
    steerer: SteererService, median_norm: float, width: int, num_layers: int, bulk: Bulk
) -> dict[str, Any]:
    """Run one concept and return the time of each stage."""
    stages = Stages()
    with tempfile.TemporaryDirectory(prefix="poolbench-bench-") as folder:
        artifacts = Artifacts(FolderStore(Path(folder)))
        scorer = ScorerService(lambda: artifacts)
        _write_inputs(artifacts, bulk, median_norm, width, layer_at_depth(0.5, num_layers))
        began = time.perf_counter()
        _run(steerer, scorer, artifacts, bulk, layer_at_depth(0.5, num_layers), [], stages)
        for names in bulk.portions:
            _run(steerer, scorer, artifacts, bulk, layer_at_depth(0.5, num_layers), names, stages)
        with stages.timed("figures"):
            measures = _figures(artifacts, bulk)
        total = time.perf_counter() - began
        texts = [text for name in bulk.names for text in artifacts.read_table(f"{name}.texts")["text"].to_pylist()]
    stages.seconds["rest"] = total - sum(stages.seconds.values())
    return {
        "total_s": total,
        "stages_s": {name: round(value, 3) for name, value in stages.seconds.items()},
        "stages_share": {name: round(value / total, 3) for name, value in stages.seconds.items()},
        "num_texts": len(texts),
        "num_distinct_texts": len(set(texts)),
        "new_tokens_per_s": len(texts) * bulk.tokens / stages.seconds["generation"],
        "end_to_end_tokens_per_s": len(texts) * bulk.tokens / total,
        "num_scorers": NUM_SCORERS,
        "num_measures": measures,
        "strategies": bulk.num_strategies, "strengths": len(bulk.strengths), "openings": bulk.num_openings,
        "new_tokens": bulk.tokens,
    }  # fmt: skip


def _write_inputs(artifacts: Artifacts, bulk: Bulk, median_norm: float, width: int, layer: int) -> None:
    artifacts.write_table("prompts", load_openings("neutral-54", bulk.num_openings))
    row = {"layer": layer, "median_residual_norm": median_norm, "num_tokens": 1}
    artifacts.write_table("calibration", table_from_rows([row], CALIBRATION))
    vectors = unit_vectors(np.random.default_rng(0), bulk.num_strategies, width)
    for name, vector in zip(bulk.names, vectors, strict=True):
        rows = [{"direction_id": "C1", "vector": vector, "raw_norm": 1.0, "status": "ok"}]
        artifacts.write_table(f"{name}.directions", table_from_rows(rows, directions_schema(width)))
    for name, scorer in random_scorers(NUM_SCORERS).items():
        artifacts.write(f"scorer.{name}", _files(scorer.head, name))


def _files(head: torch.nn.Module, name: str) -> dict[str, bytes]:
    """Return a scorer as it is stored: its trained tensors and its configuration."""
    from poolbench.models.bases import find_base
    from poolbench.steps.scorer import CONFIG, FORMAT_VERSION, WEIGHTS

    base = find_base("minilm")
    state = {f"classifier.{key}": value.contiguous() for key, value in head.classifier.state_dict().items()}
    config = {
        "format": FORMAT_VERSION, "kind": "head", "concept": name, "base": "minilm", "base_commit": None,
        "base_revision": base.revision, "depth": 5, "temperature": 1.0,
    }  # fmt: skip
    return {WEIGHTS: save_tensors(state), CONFIG: json.dumps(config).encode()}


def _run(
    steerer: SteererService,
    scorer: ScorerService,
    artifacts: Artifacts,
    bulk: Bulk,
    layer: int,
    names: Sequence[str],
    stages: Stages,
) -> None:
    """Run one portion: a task for the steerer, then one for the scorer; without names the unsteered texts."""
    params = {
        "model": bulk.model, "layer": layer, "strengths": list(bulk.strengths), "max_tokens": bulk.tokens,
        "direction_ids": ["C1"], "ignore_eos": True,
    }  # fmt: skip
    outputs = names or ["unsteered"]
    task = Task(
        kind="steerer.generate",
        inputs={"prompts": "prompts", "calibration": "calibration"}
        | {f"directions/{name}": f"{name}.directions" for name in names},
        outputs={f"{part}/{name}": f"{name}.{part}" for part in ("texts", "fluency") for name in outputs},
        params=params if names else {**params, "strengths": [0.0]},
    )
    _steer(steerer, StagedIO(task, artifacts), stages)
    inputs = {f"scorer/s{index}": f"scorer.s{index}" for index in range(NUM_SCORERS)}
    task = Task(
        kind="scorer.score",
        inputs=inputs | {f"texts/{name}": f"{name}.texts" for name in outputs},
        outputs={f"scores/{name}": f"{name}.scores" for name in outputs},
    )
    with stages.timed("scoring"):
        scorer.handlers["scorer.score"](task, TaskIO(task, artifacts))


def _steer(steerer: SteererService, io: StagedIO, stages: Stages) -> None:
    """Run a task of the steerer; its progress reports separate its stages."""
    with stages.timed("tables"):
        steerer.handlers["steerer.generate"](io.task, io)
    made, judged = io.last["texts"], io.last["fluency"]
    stages.seconds["generation"] += made - io.began
    stages.seconds["perplexity"] += judged - made
    stages.seconds["tables"] -= judged - io.began


def _figures(artifacts: Artifacts, bulk: Bulk) -> int:
    """Compute D2 of every strategy, without null directions; return the number of figures."""
    unsteered = _tables(artifacts, "unsteered")
    found = [
        measure
        for name in bulk.names
        for measure in d2_measures(_tables(artifacts, name), unsteered, None, scorer=GatedScorer("s0"))
    ]
    return sum(measure.status == "ok" for measure in found)


def _tables(artifacts: Artifacts, name: str) -> SteeredTables:
    tables: list[pa.Table] = [artifacts.read_table(f"{name}.{part}") for part in PARTS]
    return SteeredTables(*tables)
