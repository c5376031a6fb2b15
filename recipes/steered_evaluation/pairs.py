"""Minimal pairs of BLiMP behind the OpenAI API, through lm-evaluation-harness.

Warstadt et al., "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", TACL 2020: a model that prefers the
grammatical sentence of a pair gives it the higher probability.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from poolbench_driver.find.damage import Pair, blimp_pairs

TASK = "blimp_pairs"
#: Pairs of each paradigm, and sentences of one request.
PER_PARADIGM, BATCH = 10, 64


def read_pairs(per_paradigm: int = PER_PARADIGM) -> list[Pair]:
    """Return the first pairs of every paradigm that ships, the grammatical sentence first."""
    return [pair for _, pair in blimp_pairs(per_paradigm)]


@dataclass(frozen=True)
class Harness:
    """What lm-evaluation-harness found: accuracy, and the log-likelihoods of both sentences of each pair, in nats."""

    accuracy: float
    loglikelihoods: list[tuple[float, float]]


def ask_harness(pairs: Sequence[Pair], folder: Path, address: str, token: str, model: str, tokenizer: Path) -> Harness:
    """Ask lm-evaluation-harness, which asks a steerer by its `local-completions`.

    Args:
        folder: Where its task and its results lie.
        address: Base address of the steerer.
        tokenizer: Folder of the model's tokenizer.

    Raises:
        CalledProcessError: The harness failed; it has printed why.
    """
    arguments = {"base_url": f"{address}/v1/completions", "model": model, "tokenizer": tokenizer, "max_length": 512}
    return judge_pairs(pairs, folder, "local-completions", arguments, token=token)


def judge_pairs(
    pairs: Sequence[Pair], folder: Path, backend: str, arguments: Mapping[str, Any], *options: str, token: str = ""
) -> Harness:
    """Let a backend of lm-evaluation-harness judge pairs. Raise CalledProcessError as `ask_harness` does."""
    task = {
        "output_type": "multiple_choice",
        "doc_to_text": "",
        "doc_to_choice": "{{[good, bad]}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    rows = [{"good": good, "bad": bad} for good, bad in pairs]
    accuracy = run_harness(task, rows, folder, backend, arguments, *options, token=token)["acc,none"]
    answers = answers_in(folder)
    return Harness(accuracy, [(float(good[0][0]), float(bad[0][0])) for good, bad in answers])


def run_harness(
    task: Mapping[str, Any], rows: Sequence[Mapping[str, str]], folder: Path, backend: str,
    arguments: Mapping[str, Any], *options: str, token: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Run lm-evaluation-harness on a task with rows of its own; return the measures of the task.

    Args:
        task: What the file of a task holds, without its name and its data.
        folder: Where its task and its results lie.
        backend: `--model` of the harness.
        arguments: `--model_args`.
        options: Other options of its command line.
        token: Bearer token of a service.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}}
    (folder / f"{TASK}.yaml").write_text(yaml.safe_dump({"task": TASK, **data, "test_split": "test", **task}), "utf-8")
    command = [sys.executable, "-m", "lm_eval", "--model", backend, "--tasks", TASK, "--log_samples", *options]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out"), "--batch_size", str(BATCH)]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "OPENAI_API_KEY": token}
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    return json.loads(_newest(folder / "out", "results_*.json"))["results"][TASK]


def answers_in(folder: Path) -> list[Any]:
    """Return what the model answered to each row of the last run of the harness in a folder."""
    samples = map(json.loads, _newest(folder / "out", "samples_*.jsonl").splitlines())
    return [row["resps"] for row in sorted(samples, key=lambda row: row["doc_id"])]


def _newest(folder: Path, pattern: str) -> str:
    return max(folder.rglob(pattern), key=lambda path: path.stat().st_mtime).read_text("utf-8")
