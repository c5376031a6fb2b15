"""`python -m tests.mutants MODULE...`: change a line of a module, run its tests, and see whether one fails.

    make mutants PACKAGE=poolbench.statistics.auroc            # 60 mutants, at most 10 minutes
    make mutants PACKAGE="poolbench.contracts.keys poolbench.pooling" MUTANTS="--count 200 --minutes 30"

Cosmic Ray makes the mutants. The tests are those that lie beside the module and beside the packages around it, by the
rule of tests/README.md. A mutant is killed if a test fails, or if the tests take four times as long. Works on copies of
the tracked files, two at a time; the checkout is not touched. Survivors are printed and written to
bench/out/mutants.json. Exit code 1 if less than 85 % of the mutants die.
"""

import argparse
import ast
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import pytest
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
#: Processes of tests begin with what takes long to import.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "transformers", "pyarrow.parquet", "scipy.stats", "sklearn.linear_model"])
#: Exit code of such a process, to which that of pytest is added.
TESTS_RAN = 100
#: A time for each changed file: Python takes bytecode of the same second and size for its own.
_stamps = itertools.count(1_000_000_000)
#: Mutations that change no behaviour that a test should fix: an exception that nobody raises.
LEFT_OUT = ("core/ExceptionReplacer",)
#: Share of the mutants that must die.
LEAST = 0.85
#: A line and a column.
Place = tuple[int, int]
T = TypeVar("T")


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


def modules_of(names: Sequence[str], tests: Sequence[str] = ()) -> list[Module]:
    """Return the modules of some dotted names; a package stands for all its modules.

    Args:
        names: Dotted names.
        tests: Files of tests, such as one of `tests/system`, in place of those beside the modules.

    Raises:
        UsageError: If there is no such module, or it has no tests.
    """
    modules = [module for name in names for module in _modules_of(name)]
    return [replace(module, tests=tuple(tests)) for module in modules] if tests else modules


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
    """Return the files of tests of a module `a/b/c`, and those of the packages around it.

    They are `a/b/test_c*.py`, `a/test_b*.py` and so on. If there is no file for `c`, all those of its package belong to
    it.
    """
    found: set[Path] = set()
    for depth in range(len(parts), 0, -1):
        *packages, last = parts[:depth]
        place = folder.joinpath(*packages)
        named = {*place.glob(f"test_{last}.py"), *place.glob(f"test_{last}_*.py")}
        if depth < len(parts) and not found:
            named |= {*(place / last).glob("test_*.py")}
        found |= named
    return sorted(found)


def mutants_of(module: Module) -> Iterator[Mutant]:
    """Yield all mutants of a module but those of annotations, which nothing evaluates."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    file = REPOSITORY / module.file
    written, tree = ast.parse(file.read_text("utf-8")), get_ast_from_path(file)
    annotations, operations = set(annotated(written)), set(operated(written))
    for name in operator_names():
        operator = get_operator(name)
        if name in LEFT_OUT or operator.arguments():
            continue
        positions = (position for node in ast_nodes(tree) for position in operator().mutation_positions(node))
        for occurrence, ((line, column), _) in enumerate(positions):
            is_star = name.startswith("core/ReplaceBinaryOperator") and not _within(operations, line, column)
            if not is_star and not _within(annotations, line, column):
                yield Mutant(module, name, occurrence, line)


def annotated(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Yield where annotations begin and end, as line and column."""
    for node in ast.walk(tree):
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(found, ast.expr):
                yield _place(found)


def operated(tree: ast.AST) -> Iterator[tuple[Place, Place]]:
    """Yield where operations on two values begin and end; elsewhere `*` and `/` divide parameters."""
    yield from (_place(node) for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign))


def _place(node: ast.expr | ast.stmt) -> tuple[Place, Place]:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _within(places: Iterable[tuple[Place, Place]], line: int, column: int) -> bool:
    return any(first <= (line, column) < last for first, last in places)


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


def passes(copy: Path, tests: Sequence[str], timeout_s: float | None) -> bool:
    """Return whether tests pass in a copy of the repository, within a time if one is given."""
    process = PROCESSES.Process(target=_run_tests, args=(copy, tests))
    process.start()
    process.join(timeout_s)
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)  # with what its tests started
        process.join()
    if process.exitcode is not None and 0 <= process.exitcode < TESTS_RAN:
        raise UsageError("tests could not be started: the messages above say why")
    return process.exitcode == TESTS_RAN


def _run_tests(copy: Path, tests: Sequence[str]) -> None:
    """Run tests in a process that has imported the libraries, but nothing of this repository."""
    os.setsid()
    os.chdir(copy)
    folders = [str(copy / root / "src") for root in ROOTS]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    sys.dont_write_bytecode = False
    sys.path[:0] = [str(copy), *folders]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    sys.exit(TESTS_RAN + pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not lane", *tests]))


def tried(mutant: Mutant, copy: Path, timeout_s: float) -> Result:
    """Apply a mutant in a copy, run the tests, and take it back."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    file = copy / mutant.module.file
    with use_mutation(file, get_operator(mutant.operator)(), mutant.occurrence) as (before, after):
        os.utime(file, (stamp := next(_stamps), stamp))
        survived = after is not None and passes(copy, mutant.module.tests, timeout_s)
    line = mutant.line - 1
    changed = [text.splitlines()[line].strip() for text in (before, after or before)]
    return Result(mutant, survived, f"{mutant.module.file}:{mutant.line}: {changed[0]}  ->  {changed[1]}")


def results_of(modules: Sequence[Module], count: int, minutes: float) -> Iterator[Result]:
    """Try a random sample of the mutants of some modules. After so many minutes, no further one is begun.

    Raises:
        UsageError: If the tests of a module fail without a mutant.
    """
    everything = [mutant for module in modules for mutant in mutants_of(module)]
    sample = random.Random(0).sample(everything, min(count, len(everything)))
    print(f"{len(sample)} of {len(everything)} mutants of {len(modules)} modules", flush=True)
    with tempfile.TemporaryDirectory(prefix="poolbench-mutants-") as folder, ThreadPoolExecutor(WORKERS) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copies.put(copy_of_repository(Path(folder, str(number))))

        def with_copy(work: Callable[[Path], T]) -> T:
            copy = copies.get()
            try:
                return work(copy)
            finally:
                copies.put(copy)

        groups = list({mutant.module.tests for mutant in sample})
        times_s = pool.map(lambda tests: with_copy(lambda copy: duration_of(copy, tests)), groups)
        timeouts_s = {tests: SLOWER * taken_s + MARGIN_S for tests, taken_s in zip(groups, times_s, strict=True)}
        end_s = time.monotonic() + 60 * minutes

        def work(mutant: Mutant) -> Result | None:
            if time.monotonic() > end_s:
                return None
            return with_copy(lambda copy: tried(mutant, copy, timeouts_s[mutant.module.tests]))

        yield from (result for result in pool.map(work, sample) if result is not None)


def duration_of(copy: Path, tests: Sequence[str]) -> float:
    """Return how many seconds tests take without a mutant.

    Raises:
        UsageError: If one fails.
    """
    began_s = time.monotonic()
    if not passes(copy, tests, None):
        raise UsageError(f"tests fail without a mutant: {' '.join(tests)}")
    return time.monotonic() - began_s


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="dotted name of a module or package")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="in place of those beside it")
    parser.add_argument("--count", type=int, default=60, help="mutants to try, drawn at random")
    parser.add_argument("--minutes", type=float, default=10, help="after so long, no further mutant is tried")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    results: list[Result] = []
    try:
        modules = modules_of(arguments.modules, arguments.tests)
        for result in results_of(modules, arguments.count, arguments.minutes):
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
