"""Measure the Python code of this repository: sizes, docstrings, comments.

Run `.venv/bin/python tools/measure_code.py` for a table, `--json FILE` for the same figures in a file,
and `--against REV` for the change of the number of lines since a revision. Types are left to mypy.

A file is a test when it lies in a folder `tests`, is named `test_*.py` or is `conftest.py`. All figures
but the lines of test code are of the other files. A function counts from its `def` to its last line,
with docstring and comments; a nested function is part of the one that holds it. `--json` also has the
length without docstrings, comments and blank lines (`code_lines`).
"""

import argparse
import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sources import Definition, Function, SourceFile, count_lines_at, is_test, outer_functions, read_sources

REPOSITORY = Path(__file__).resolve().parents[1]

Measures = dict[str, Any]
Size = tuple[int, str]


def measure_functions(sources: Sequence[SourceFile]) -> Measures:
    """Return median, 90th percentile and the longest of the functions."""
    sizes, code_sizes = [], []
    for source in sources:
        for name, node in outer_functions(source):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            sizes.append((len(span), f"{source.path}:{name}"))
            code_sizes.append((len(set(span) - source.without_code), f"{source.path}:{name}"))
    return _spread(sizes) | {"code_lines": _spread(code_sizes)}


def measure_files(sources: Sequence[SourceFile]) -> Measures:
    """Return median, 90th percentile and the longest of the files."""
    return _spread([(source.num_lines, str(source.path)) for source in sources])


def _spread(sizes: Sequence[Size]) -> Measures:
    """Return the distribution of some sizes; the 90th percentile is the smallest size that 90 % do not exceed."""
    lengths = sorted(length for length, _ in sizes)
    return {
        "number": len(lengths),
        "median": statistics.median(lengths),
        "p90": lengths[max(0, -(-len(lengths) * 9 // 10) - 1)],
        "longest": [{"lines": length, "name": name} for length, name in sorted(sizes, reverse=True)[:5]],
    }


def measure_docstrings(sources: Sequence[SourceFile], repository: Path) -> Measures:
    """Return how many public modules, classes and functions have a docstring, and how many are imperative."""
    have: dict[str, list[bool]] = {"modules": [], "classes": [], "functions": []}
    num_functions = 0
    for source in sources:
        num_functions += sum(isinstance(n, Function) and bool(ast.get_docstring(n)) for n in ast.walk(source.tree))
        have["modules"].append(bool(ast.get_docstring(source.tree)))
        for node in _public(source.tree.body):
            have["classes" if isinstance(node, ast.ClassDef) else "functions"].append(bool(ast.get_docstring(node)))
    wrong = count_not_imperative([str(source.path) for source in sources], repository)
    shares = {f"documented_{kind}": _share(documented) for kind, documented in have.items()}
    return shares | {"imperative_functions": round(1 - wrong / max(1, num_functions), 4), "not_imperative": wrong}


def _public(body: Iterable[ast.AST]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def count_not_imperative(paths: Sequence[str], repository: Path) -> int:
    """Return how many docstrings of functions ruff's rule D401 finds not to be imperative."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "D401"]
    done = subprocess.run(
        [*command, "--output-format", "json", *paths], cwd=repository, stdout=subprocess.PIPE, check=False
    )
    return len(json.loads(done.stdout))


def _share(found: Sequence[bool]) -> float:
    return round(sum(found) / len(found), 4) if found else 1.0


def measure(repository: Path, against: str | None = None) -> Measures:
    """Return all figures of a repository, compared with the git revision `against`."""
    everything = read_sources(repository)
    sources = [source for source in everything if not is_test(source.path)]
    num_lines = sum(source.num_lines for source in sources)
    test_lines = sum(source.num_lines for source in everything) - num_lines
    measures: Measures = {
        "lines": num_lines,
        "test_lines": test_lines,
        "comment_share": round(sum(len(source.comments) for source in sources) / max(1, num_lines), 4),
        "files": measure_files(sources),
        "functions": measure_functions(sources),
        **measure_docstrings(sources, repository),
    }
    if against:
        before = count_lines_at(repository, against)
        change = num_lines - before["code"]
        measures["against"] = {
            "revision": against,
            "lines": change,
            "share": round(change / max(1, before["code"]), 4),
            "test_lines": test_lines - before["tests"],
        }
    return measures


def print_measures(measures: Measures) -> None:
    """Print the figures as a table for people."""
    functions, files = measures["functions"], measures["files"]
    for name, sizes in (("function", functions), ("  code only", functions["code_lines"]), ("file", files)):
        longest = sizes["longest"][0]
        print(
            f"{name:24} {sizes['number']:6,}   median {sizes['median']:g}, 90 % at most {sizes['p90']}, "
            f"longest {longest['lines']} ({longest['name']})"
        )
    print(f"{'lines':24} {measures['lines']:6,}   and {measures['test_lines']:,} of tests")
    if change := measures.get("against"):
        print(f"{'  against ' + change['revision']:24} {change['lines']:+6,}   {change['share']:+.1%}")
        print(f"{'  tests':24} {change['test_lines']:+6,}")
    for name, value in measures.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' '):24} {value:6.1%}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there, too")
    parser.add_argument("--against", metavar="REV", help="compare the numbers of lines with this git revision")
    options = parser.parse_args()
    measures = measure(REPOSITORY, options.against)
    print_measures(measures)
    if options.json:
        options.json.write_text(json.dumps(measures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
