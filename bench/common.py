"""Shared by all benchmarks: the machine they ran on, and their JSON reports."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).parent / "out"
PACKAGES = ("torch", "transformers", "numpy", "pyarrow")


def write_report(name: str, ratios: Mapping[str, float | None], figures: dict[str, Any]) -> Path:
    """Write `bench/out/<name>.json` and print its ratios; a ratio is None if the figures say why there is none."""
    report = {
        "name": name,
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "device": device(),
        "versions": {package: version(package) for package in PACKAGES},
        "ratios": dict(ratios),
        "figures": figures,
    }
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / f"{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    for ratio, value in ratios.items():
        print(f"{ratio:28s} {'null' if value is None else format(value, '.3f'):>8s}")
    return path


def commit() -> str:
    """Return the current commit, marked if the working tree differs from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "unknown") + ("+changes" if changed.stdout.strip() else "")


def device() -> str:
    """Return the accelerator, or the processor with the threads torch may use."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads"


def processor() -> str:
    """Return the processor's own name if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
