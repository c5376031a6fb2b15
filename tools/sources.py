"""Python files of a repository, and what counts as test code."""

import ast
import io
import subprocess
import tarfile
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class SourceFile:
    """One Python file: its path below the repository, and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def comments(self) -> frozenset[int]:
        """Return the numbers of the lines that hold a comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return frozenset(token.start[0] for token in tokens if token.type == tokenize.COMMENT)

    @cached_property
    def without_code(self) -> frozenset[int]:
        """Return the numbers of the lines that are blank, a comment or part of a docstring."""
        lines = self.text.splitlines()
        plain = {number for number, line in enumerate(lines, 1) if line.strip()[:1] in ("", "#")}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False) is not None:
                plain.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        return frozenset(plain)


def is_test(path: PurePosixPath) -> bool:
    """Return whether a file is test code."""
    return "tests" in path.parts or path.name.startswith("test_") or path.name == "conftest.py"


def read_sources(repository: Path) -> list[SourceFile]:
    """Return the Python files that git tracks and that exist in the working tree."""
    listed = _git(repository, "ls-files", "-z", "--", "*.py").decode().split("\0")
    paths = [PurePosixPath(name) for name in listed if name and (repository / name).is_file()]
    return [SourceFile(path, (repository / path).read_text("utf-8")) for path in paths]


def count_lines_at(repository: Path, revision: str) -> dict[str, int]:
    """Return the lines of test code and of all other Python code at a git revision."""
    archive = _git(repository, "archive", "--format=tar", revision, "--", ":(glob)**/*.py")
    counts = {"code": 0, "tests": 0}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files.getmembers():
            if content := files.extractfile(member):
                kind = "tests" if is_test(PurePosixPath(member.name)) else "code"
                counts[kind] += len(content.read().decode("utf-8").splitlines())
    return counts


def _git(repository: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=repository, stdout=subprocess.PIPE, check=True).stdout


def outer_functions(source: SourceFile) -> Iterator[tuple[str, Function]]:
    """Yield each function and method with its qualified name, without the functions inside of functions."""

    def visit(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, Function):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try | ast.With):
                yield from visit(ast.iter_child_nodes(node), prefix)

    return visit(source.tree.body, "")
