"""Floors of a package: how many modules the longest chain of its imports has.

All imports count, those inside of functions too; imports for type checking alone (`if TYPE_CHECKING`) do not.
Modules that import each other in a circle count as one floor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import PurePosixPath
from typing import Any

Graph = dict[str, set[str]]


def measure_imports(trees: Mapping[PurePosixPath, ast.Module]) -> dict[str, Any]:
    """Return floors, number of modules and modules in cycles of each package, from the trees by path."""
    packages: dict[str, dict[str, ast.Module]] = {}
    for path, tree in trees.items():
        if name := module_name(path):
            packages.setdefault(name.partition(".")[0], {})[name] = tree
    return {package: _measure_package(modules) for package, modules in sorted(packages.items())}


def _measure_package(modules: Mapping[str, ast.Module]) -> dict[str, Any]:
    graph = {name: set(imported_modules(name, tree, modules)) - {name} for name, tree in modules.items()}
    reachable = _closure(graph)
    cycles = sorted(name for name in graph if name in reachable[name])
    return {"floors": count_floors(graph, reachable), "modules": len(graph), "in_cycles": cycles}


def module_name(path: PurePosixPath) -> str | None:
    """Return the import name of a file below a folder `src` or in `deploy`, else None."""
    parts = path.with_suffix("").parts
    if "src" in parts:
        parts = parts[parts.index("src") + 1 :]
    elif parts[0] != "deploy":
        return None
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(name: str, tree: ast.Module, modules: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the same package that a module imports."""
    known = set(modules)
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in known:
            nested = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from nested & known
            if nested - known:
                yield node.module


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from _runtime_nodes(child)


def _closure(graph: Graph) -> Graph:
    """Return all modules that each module reaches by one import or more."""
    reached: Graph = {}
    for start in graph:
        found: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            if (name := waiting.pop()) not in found:
                found.add(name)
                waiting += graph[name]
        reached[start] = found
    return reached


def count_floors(graph: Graph, reachable: Graph) -> int:
    """Return the length of the longest chain of imports, with each cycle as one module."""
    merged = {name: min({name, *(other for other in reachable[name] if name in reachable[other])}) for name in graph}
    edges: Graph = {}
    for name, imported in graph.items():
        edges.setdefault(merged[name], set()).update({merged[other] for other in imported} - {merged[name]})
    floors: dict[str, int] = {}
    for name in TopologicalSorter(edges).static_order():
        floors[name] = 1 + max((floors[other] for other in edges[name]), default=0)
    return max(floors.values(), default=0)
