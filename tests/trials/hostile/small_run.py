"""A small run of the main job: it trains the scorer that the control load asks, and its files are what is damaged."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from poolbench.storage import Artifacts
from poolbench_driver.cluster.session import open_session
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import prepare
from poolbench_driver.stages.stage import Plan

_TIMEOUT_S = 1200
#: A corpus seed that nobody else uses: no artifact of another run is ever damaged.
_CORPUS_SEED = 990_011
_SETTINGS = {
    "budget": {
        "name": "hostile",
        "num_train": 40,
        "num_test": 20,
        "num_scorer": 60,
        "strengths": [0.25],
        "null_strengths": [0.25],
        "reference_strength": 0.25,
        "num_openings": 4,
        "max_tokens": 6,
        "num_bootstrap": 50,
        "num_continuations": 10,
    },
    "corpus": {"seed": _CORPUS_SEED},
    "concepts": ["contrast"],
    "strategies": ["A1_mean", "W2_last_k", "A9_position_weighted", "L1_pos_filtered", "A2_max", "A3_min"],
    "layers": [2, 4],
    "metrics": ["d1", "d2"],
}


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    exit_code: int
    output: str
    digest: str
    wall_s: float


@dataclass(frozen=True)
class SmallRun:
    """The run, in a folder of its own."""

    folder: Path

    def run(self) -> Ran:
        """Runs the command that a person would run."""
        started = time.monotonic()
        command = [str(Path(sys.executable).with_name("poolbench-driver")), "run", str(self._config)]
        command += ["--output", str(self.folder / "runs"), "--display", "json"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env={**os.environ}
        )
        state = self.folder / "runs" / "latest" / "state.json"
        digest = json.loads(state.read_text()).get("results_digest", "") if state.is_file() else ""
        return Ran(done.returncode, done.stdout + done.stderr, digest, time.monotonic() - started)

    @cached_property
    def artifacts(self) -> Artifacts:
        """The cluster's artifacts."""
        return open_session().artifacts

    @cached_property
    def plan(self) -> Plan:
        """The run's plan, which names every key."""
        return prepare(load_run_config(self._config, {}), open_session()).plan

    @property
    def scorer(self) -> str:
        """Key of the scorer that the run trains."""
        return self.plan.steering.scorers.concepts["contrast"].scorer

    @property
    def keys(self) -> list[str]:
        """Every artifact that only this run makes: all but the calibration, which runs on one model share."""
        made = {key: task.kind for task in self.plan.tasks.values() for key in task.outputs.values()}
        own = {step.key for step in self.plan.local.values() if step.label.startswith("passages")}
        return sorted({key for key, kind in made.items() if kind != "extractor.calibrate"} | own)

    @property
    def _config(self) -> Path:
        path = self.folder / "run.yaml"
        if not path.exists():
            path.write_text(yaml.safe_dump(_SETTINGS))
        return path
