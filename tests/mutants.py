"""`python -m tests.mutants MODULE...`: change a line of a module, run its tests, and see whether one fails.

    make mutants PACKAGE=poolbench.statistics.auroc            # 60 mutants, at most 10 minutes
    make mutants PACKAGE="poolbench.contracts.keys poolbench.pooling" MUTANTS="--count 200 --minutes 30"

Cosmic Ray makes the mutants. The tests are those that lie beside the module, by the rule of tests/README.md. A mutant
is killed if a test fails, or if the tests take four times as long. Works on copies of the tracked files, two at a
time; the checkout is not touched. Survivors are printed and written to bench/out/mutants.json. Exit code 1 if less than
85 % of the mutants die.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.pages import REPOSITORY

OUTPUT = REPOSITORY / "bench" / "out" / "mutants.json"
#: Folders of packages of the repository.
ROOTS = (
    "shared",
    "corpus",
    "driver",
    *(f"services/{name}" for name in ("extractor", "pooler", "prober", "scorer", "steerer")),
)
#: Mutants at a time, and how much longer than without a mutant tests may take.
WORKERS, SLOWER, MARGIN_S = 2, 4, 20
#: Mutations that change no behaviour that a test should fix: an exception that nobody raises.
LEFT_OUT = ("core/ExceptionReplacer",)
#: Share of the mutants that must die.
LEAST = 0.85


class UsageError(Exception):
    """A module that there is not, or tests that fail without a mutant."""


@dataclass(frozen=True)
class Module:
    """A module and the tests beside it, relative to the repository."""

    name: str
    file: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """A change of a module: the operator of Cosmic Ray, its occurrence, and the first line that it changes."""

    module: Module
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    survived: bool
    diff: str


def modules_of(names: Sequence[str]) -> list[Module]:
    """Return the modules of some dotted names; a package stands for all its modules.

    Raises:
        UsageError: If there is no such module, or it has no tests.
    """
    return [module for name in names for module in _modules_of(name)]


def _modules_of(name: str) -> list[Module]:
    for root in ROOTS:
        place = REPOSITORY / root / "src" / name.replace(".", "/")
        if place.with_suffix(".py").is_file():
            return [_module(root, place.with_suffix(".py"))]
        if place.is_dir():
            files = [file for file in sorted(place.rglob("*.py")) if file.name != "__init__.py"]
            return [_module(root, file) for file in files]
    raise UsageError(f"there is no module or package {name}; give a dotted name, such as poolbench.statistics.auroc")


def _module(root: str, file: Path) -> Module:
    source = REPOSITORY / root / "src"
    parts = file.relative_to(source).with_suffix("").parts
    tests = tests_of(REPOSITORY / root / "tests", parts[1:])
    if not tests:
        raise UsageError(f"{'.'.join(parts)} has no tests beside it")
    names = tuple(str(test.relative_to(REPOSITORY)) for test in tests)
    return Module(".".join(parts), str(file.relative_to(REPOSITORY)), names)


def tests_of(folder: Path, parts: Sequence[str]) -> list[Path]:
    """Return the files of tests of a module `a/b/c`: `a/b/test_c*.py`, else those of the nearest package around it."""
    for depth in range(len(parts), 0, -1):
        *packages, last = parts[:depth]
        found = {
            *folder.joinpath(*packages).glob(f"test_{last}.py"),
            *folder.joinpath(*packages).glob(f"test_{last}_*.py"),
        }
        if found:
            return sorted(found)
    return []


def mutants_of(module: Module) -> Iterator[Mutant]:
    """Yield all mutants of a module but those of annotations, which nothing evaluates."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    file = REPOSITORY / module.file
    annotations, tree = set(annotated(ast.parse(file.read_text("utf-8")))), get_ast_from_path(file)
    for name in operator_names():
        operator = get_operator(name)
        if name in LEFT_OUT or operator.arguments():
            continue
        positions = (position for node in ast_nodes(tree) for position in operator().mutation_positions(node))
        for occurrence, ((line, column), _) in enumerate(positions):
            if not any(first <= (line, column) < last for first, last in annotations):
                yield Mutant(module, name, occurrence, line)


def annotated(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield where annotations begin and end, as line and column."""
    for node in ast.walk(tree):
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(found, ast.expr) and found.end_lineno is not None and found.end_col_offset is not None:
                yield (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def copy_of_repository(folder: Path) -> Path:
    """Copy the tracked files, and return the copy."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file() and not name.startswith("assets/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    (folder / "assets").symlink_to(REPOSITORY / "assets")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def passes(copy: Path, tests: Sequence[str], timeout_s: float) -> bool:
    """Return whether tests pass in a copy of the repository within a time."""
    path = os.pathsep.join(str(copy / root / "src") for root in ROOTS)
    own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not lane", *tests]
    process = subprocess.Popen(
        command, cwd=copy, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return False


def tried(mutant: Mutant, copy: Path, timeout_s: float) -> Result:
    """Apply a mutant in a copy, run the tests, and take it back."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    with use_mutation(copy / mutant.module.file, get_operator(mutant.operator)(), mutant.occurrence) as (before, after):
        survived = after is not None and passes(copy, mutant.module.tests, timeout_s)
    line = mutant.line - 1
    changed = [text.splitlines()[line].strip() for text in (before, after or before)]
    return Result(mutant, survived, f"{mutant.module.file}:{mutant.line}: {changed[0]}  ->  {changed[1]}")


def results_of(modules: Sequence[Module], count: int, minutes: float) -> Iterator[Result]:
    """Try a random sample of the mutants of some modules, until the time is over.

    Raises:
        UsageError: If the tests of a module fail without a mutant.
    """
    end_s = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="poolbench-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copies.put(copy_of_repository(Path(folder, str(number))))
        timeouts_s: dict[str, float] = {}
        for module in modules:
            began_s, copy = time.monotonic(), copies.get()
            if not passes(copy, module.tests, 60 * minutes):
                raise UsageError(f"the tests of {module.name} fail without a mutant: {' '.join(module.tests)}")
            copies.put(copy)
            timeouts_s[module.name] = SLOWER * (time.monotonic() - began_s) + MARGIN_S
        everything = [mutant for module in modules for mutant in mutants_of(module)]
        sample = random.Random(0).sample(everything, min(count, len(everything)))
        print(f"{len(sample)} of {len(everything)} mutants of {len(modules)} modules", flush=True)

        def work(mutant: Mutant) -> Result | None:
            if time.monotonic() > end_s:
                return None
            copy = copies.get()
            try:
                return tried(mutant, copy, timeouts_s[mutant.module.name])
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(WORKERS) as pool:
            yield from (result for result in pool.map(work, sample) if result is not None)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="dotted name of a module or package")
    parser.add_argument("--count", type=int, default=60, help="mutants to try, drawn at random")
    parser.add_argument("--minutes", type=float, default=10, help="after so long, no further mutant is tried")
    arguments = parser.parse_args()
    results: list[Result] = []
    try:
        for result in results_of(modules_of(arguments.modules), arguments.count, arguments.minutes):
            results.append(result)
            if result.survived:
                print(f"survived: {result.diff}", flush=True)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ImportError:
        print("error: Cosmic Ray is missing: run `python deploy/install.py --add mutants`", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    survivors = [result for result in results if result.survived]
    share = 1 - len(survivors) / max(1, len(results))
    print(f"{len(results) - len(survivors)} of {len(results)} mutants died: {share:.0%}")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(OUTPUT.read_text("utf-8")) if OUTPUT.is_file() else {}
    entry = {"tried": len(results), "died": len(results) - len(survivors), "survivors": [r.diff for r in survivors]}
    OUTPUT.write_text(json.dumps(record | {" ".join(arguments.modules): entry}, indent=1) + "\n", "utf-8")
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
