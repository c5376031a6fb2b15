"""`python -m tests.trials.fuzz`: mutated messages and files before every reader; `make fuzz` calls it."""

import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from tests.trials.fuzz.watch import REPOSITORY, Finding, run
from tests.trials.fuzz.worker import load_targets

MODULES = [f"tests.trials.fuzz.{name}_targets" for name in ("queue", "binary", "text")]
_SHOWN = 40
_CONSOLE = Console(width=160)


def main() -> int:
    """Read FUZZ_N cases of each target; return 1 after findings."""
    seed, count = int(os.environ.get("FUZZ_SEED", "1")), int(os.environ.get("FUZZ_N", "10000"))
    names = [target.name for target in load_targets(MODULES)]
    wanted = list(filter(None, os.environ.get("FUZZ_TARGETS", "").split(","))) or names
    if unknown := set(wanted) - set(names):
        _CONSOLE.print(f"error: FUZZ_TARGETS: unknown {', '.join(sorted(unknown))}; known: {', '.join(names)}")
        return 2
    numbers = [int(os.environ["FUZZ_ONLY"])] if os.environ.get("FUZZ_ONLY") else range(count)
    cases = [(names.index(name), number) for name in wanted for number in numbers]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="poolbench-fuzz-") as folder:
        findings = run(MODULES, cases, seed, Path(folder))
    _report(findings, names, wanted, len(cases), seed, time.monotonic() - started_s)
    return 1 if findings else 0


def _report(
    findings: list[Finding], names: list[str], wanted: list[str], num_cases: int, seed: int, wall_s: float
) -> None:
    counts = Counter(names[finding.target] for finding in findings)
    for name in wanted:
        _CONSOLE.print(f"{name:32} {counts[name] or 'no'} findings", highlight=False)
    for finding in findings[:_SHOWN]:
        name = names[finding.target]
        again = f"FUZZ_SEED={seed} FUZZ_ONLY={finding.number} FUZZ_TARGETS={shlex.quote(name)} make fuzz"
        _CONSOLE.print(f"{name} #{finding.number}: {finding.found}\n  again: {again}", markup=False, highlight=False)
    if len(findings) > _SHOWN:
        _CONSOLE.print(f"and {len(findings) - _SHOWN} more")
    done = f"{num_cases} cases of {len(wanted)} kinds in {wall_s:.0f} s, {len(findings)} findings"
    _CONSOLE.print(done, highlight=False)
    out = REPOSITORY / "bench" / "out" / "fuzz.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    figures = {"cases": num_cases, "kinds": wanted, "seed": seed, "findings": dict(counts), "wall_s": round(wall_s)}
    out.write_text(json.dumps({"name": "fuzz", "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
