"""Run workers over all cases: one that crashes or hangs is a finding, and another one goes on after it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.pages import REPOSITORY
from tests.trials.fuzz.worker import NO_CASE, PROGRESS

#: CPU time of one case. It does not depend on what else runs on the machine.
CASE_CPU_S = 20.0
#: A case that neither ends nor computes waits for something.
CASE_WALL_S = 300.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Finding:
    """What one case did."""

    target: int
    number: int
    found: str


def run(modules: list[str], cases: list[tuple[int, int]], seed: int, folder: Path) -> list[Finding]:
    """Return what was found in the cases, each a number of a target."""
    findings, left = [], list(cases)
    while left:
        ended, reason = _work(modules, left, seed, folder)
        findings += list(_collect(folder))
        if not reason:
            return findings
        if ended == NO_CASE:
            raise SystemExit(f"the worker could not begin: {reason}\n{(folder / 'worker.log').read_text()[-3000:]}")
        findings.append(Finding(*ended, reason))
        left = left[left.index(ended) + 1 :]
    return findings


def _work(modules: list[str], cases: list[tuple[int, int]], seed: int, folder: Path) -> tuple[tuple[int, int], str]:
    """Run one worker. Return the case at which it ended, and why; no reason if it has read all."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"modules": modules, "cases": cases, "seed": seed, "folder": str(folder)}))
    progress = folder / PROGRESS
    progress.write_text(" ".join(map(str, NO_CASE)))
    command = [sys.executable, "-m", "tests.trials.fuzz.worker", str(plan)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
    with (folder / "worker.log").open("w") as log:
        worker = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        try:
            reason = _watch(worker, progress)
        finally:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
    return _case(progress), reason


def _case(progress: Path) -> tuple[int, int]:
    target, number = map(int, progress.read_text().split())
    return target, number


def _watch(worker: subprocess.Popen[bytes], progress: Path) -> str:
    process, seen, cpu_s, since_s = psutil.Process(worker.pid), NO_CASE, 0.0, time.monotonic()
    while (code := worker.poll()) is None:
        time.sleep(_POLL_S)
        now = _case(progress)
        try:
            used_s = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
        if now != seen or now == NO_CASE:
            seen, cpu_s, since_s = now, used_s, time.monotonic()
        elif used_s - cpu_s > CASE_CPU_S:
            return f"still computes after {CASE_CPU_S:g} s"
        elif time.monotonic() - since_s > CASE_WALL_S:
            return f"still waits after {CASE_WALL_S:g} s"
    if code == 0:
        return ""
    return f"ended the process: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def _collect(folder: Path) -> Iterator[Finding]:
    file = folder / "findings.jsonl"
    if file.exists():
        yield from (Finding(**json.loads(line)) for line in file.read_text().splitlines())
        file.unlink()
