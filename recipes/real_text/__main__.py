"""`python -m recipes.real_text`: build all concepts that the real-text archives serve, audit and measure them.

It needs the archives (`POOLBENCH_REAL_TEXT`) and a cluster that runs. The same command again goes on where the last
one stopped. At the end it writes the page of results.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from recipes.real_text.page import page

from poolbench.settings import FolderSettings
from poolbench_driver.records import find_run

DRIVER = Path(sys.executable).with_name("poolbench-driver")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "real-text.md"
_LACKING = re.compile(r"^(\w+) \(.*\) \.\.\. none: (.+)$", re.MULTILINE)
#: Exit codes of a run whose tables are whole: done, and done with failed tasks.
FINISHED = (0, 1)


def main() -> int:
    """Build, audit, run and write the page; without the archives, say so."""
    args = _arguments()
    archives = FolderSettings.load().real_text or Path("../shared/data")
    if not archives.is_dir():
        print(f"skipped: no real-text archives at {archives} (POOLBENCH_REAL_TEXT)")
        return 0
    lacking = build(args.output / "corpus", args.budget, args.concepts)
    concepts = concepts_of(args.output / "corpus")
    if not concepts:
        print("error: the archives serve none of these concepts", file=sys.stderr)
        return 1
    code = measure(args.output, concepts, args.budget, args.strategies, args.limit)
    if code not in FINISHED:
        return code
    found = find_run(args.output, "latest")
    args.page.parent.mkdir(parents=True, exist_ok=True)
    args.page.write_text(page(found, args.output / "corpus", lacking), "utf-8")
    print(f"page: {args.page}")
    return code


def build(corpus: Path, budget: str, concepts: str | None) -> dict[str, str]:
    """Build the corpora into a folder; return why a concept was not built, by concept."""
    what = ["all", "--output", str(corpus)] if concepts is None else [concepts, "--output", str(corpus)]
    command = [str(DRIVER), "corpus", "build", *what, "--source", "real", "--budget", budget]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait() not in FINISHED:
        raise SystemExit(process.returncode)
    return dict(_LACKING.findall("".join(lines)))


def concepts_of(corpus: Path) -> list[str]:
    """Return the concepts of a corpus folder."""
    return sorted(path.name for path in corpus.iterdir() if path.is_dir() and not path.name.startswith("."))


def measure(output: Path, concepts: list[str], budget: str, strategies: str, limit: int | None) -> int:
    """Run all strategies on all concepts; return the exit code."""
    command = [str(DRIVER), "run", "--preset", budget, "--corpus", str(output / "corpus"), "--output", str(output)]
    command += ["--concepts", ",".join(concepts), "--strategies", strategies]
    command += [] if limit is None else ["--limit", str(limit)]
    return subprocess.run(command, check=False).returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs-real-text"), help="folder of corpora and run")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--budget", default="demo", help="sizes of corpora and run: demo, card or full")
    parser.add_argument("--concepts", help="with commas; by default all that the archives serve")
    parser.add_argument("--strategies", default="card", help="with commas")
    parser.add_argument("--limit", type=int, help="passages per concept and split, for a trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
