"""Shared by all benchmarks: the command line, reports, and small measurements."""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))  # benchmarks start the servers of `tests` and `deploy`

OUTPUT = REPOSITORY / "bench" / "out"
PACKAGES = ("torch", "transformers", "numpy", "pyarrow")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: Written to `clear_refs` it sets the peak resident set back to the present one.
RESET_PEAK = "5"


class Parser(argparse.ArgumentParser):
    """A parser with the options of all benchmarks: `--smallest` and `--out`."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--smallest", action="store_true", help="run everything once, tiny: a test, no figures")
        self.add_argument("--out", type=Path, default=OUTPUT, help="folder of the report")

    def options(self, **smallest: Any) -> argparse.Namespace:
        """Parse the command line. With `--smallest`, these values replace the defaults of other options."""
        if self.parse_args().smallest:
            self.set_defaults(**smallest)
        return self.parse_args()


def require_device(name: str) -> None:
    """End the benchmark with one line if it is to run on a GPU and there is none."""
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU here: run on a machine with one, or check the benchmark with --smallest "
                 "--device cpu")  # fmt: skip


def write_report(
    name: str, options: argparse.Namespace, ratios: Mapping[str, float | None], figures: dict[str, Any]
) -> Path:
    """Write `<name>.json` and print its ratios; a ratio is None if the figures say why there is none."""
    report = {
        "name": name,
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "device": device(),
        "load_average": os.getloadavg(),
        "versions": {package: version(package) for package in PACKAGES},
        "options": vars(options),
        "ratios": dict(ratios),
        "figures": figures,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path: Path = options.out / f"{name}.json"
    path.write_text(json.dumps(report, indent=2, default=str) + "\n")
    for ratio, value in ratios.items():
        print(f"{ratio:28s} {'null' if value is None else format(value, '.3f'):>8s}")
    return path


def commit() -> str:
    """Return the current commit, marked if the working tree differs from it."""
    git = ["git", "-C", str(REPOSITORY)]
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


def turns(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Yield all names in each round, in every second one backwards, so that drift affects all of them alike."""
    order = list(names)
    for number in range(rounds):
        yield from order[:: -1 if number % 2 else 1]


@dataclass(frozen=True)
class Spent:
    """Seconds of wall-clock time, and CPU seconds of this process on all its threads."""

    wall_s: float
    cpu_s: float


class Clock:
    """Measures from the moment when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self) -> Spent:
        """Return the time so far."""
        return Spent(time.perf_counter() - self._began[0], time.process_time() - self._began[1])


def peak_bytes() -> int:
    """Return the peak resident memory in the life of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reports_memory() -> bool:
    """Return whether the system reports the peak resident memory of a process, and lets it be set back."""
    return STATUS.exists() and os.access(CLEAR, os.W_OK)


def reset_peak() -> int:
    """Set the peak resident memory of this process back to the present one, which is returned."""
    CLEAR.write_text(RESET_PEAK)
    return resident_bytes("VmRSS")


def resident_bytes(field: str) -> int:
    """Return the resident memory of this process: `VmRSS`, or its peak `VmHWM`."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
