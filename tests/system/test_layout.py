"""Tests lie beside the code: a stranger finds the tests of a line by replacing a part of its path."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest
from tests import client
from tests.pages import REPOSITORY, tracked


@dataclass(frozen=True)
class Package:
    """A folder of code and the folder of its tests.

    Attributes:
        code: The tests of `code/a/b.py` are `tests/a/test_b.py`, or `tests/a/test_b_<topic>.py`.
        tests: Where they lie.
    """

    code: str
    tests: str


#: The packages that are checked. Tests of several of them are in `tests/system`.
PACKAGES = (
    Package("shared/src/poolbench", "shared/tests"),
    Package("corpus/src/poolbench_corpora", "corpus/tests"),
    Package("driver/src/poolbench_driver", "driver/tests"),
    *(
        Package(f"services/{name}/src/poolbench_{name}", f"services/{name}/tests")
        for name in ("extractor", "pooler", "prober", "scorer", "steerer")
    ),
)
#: Folders whose tests lie beside them too, but not all of them: nodes and the proof of a profile are run by
#: `tests/system/clusters`, and benchmarks whole by `bench/tests/test_ratios.py`.
PLACED_ONLY = tuple(Package(folder, f"{folder}/tests") for folder in ("deploy", "bench", "tools", "docs"))
#: Tests that are about a whole folder, and about no module of it.
WHOLE = {"docs/tests/test_pages.py", "docs/tests/test_words.py", "driver/tests/test_golden.py"}
#: Modules without functions of their own need no tests of their own.
FUNCTION = re.compile(r"^ *(?:async )?def ", re.MULTILINE)


def files_of(folder: str) -> list[PurePosixPath]:
    """Return the tracked Python files of a folder, relative to it."""
    files = tracked(f"{folder}/*.py")
    return [PurePosixPath(file.relative_to(REPOSITORY / folder).as_posix()) for file in files]


def modules_of(package: Package) -> list[PurePosixPath]:
    """Return the modules of a package as paths without suffix, without its tests."""
    inside = PurePosixPath(package.tests).relative_to(package.code) if is_inside(package) else None
    files = [file for file in files_of(package.code) if inside is None or not file.is_relative_to(inside)]
    return [file.with_suffix("") for file in files if "examples" not in file.parts]


def is_inside(package: Package) -> bool:
    """Return whether the tests lie below the code."""
    return PurePosixPath(package.tests).is_relative_to(package.code)


def names_below(package: Package) -> dict[PurePosixPath, set[str]]:
    """Return the names of modules and folders by the folder that holds them."""
    names: dict[PurePosixPath, set[str]] = {}
    folders = {PurePosixPath(file.relative_to(REPOSITORY / package.code).as_posix()) for file in tracked(package.code)}
    for path in [*modules_of(package), *(parent for file in folders for parent in file.parents)]:
        if path.name:
            names.setdefault(path.parent, set()).add(path.name)
    return names


def misplaced(package: Package) -> list[str]:
    """Return the test files whose name and place belong to no module, each with what is there."""
    names, wrong = names_below(package), []
    for file in files_of(package.tests):
        place = f"{package.tests}/{file}"
        if not file.name.startswith("test_") or place in WHOLE:
            continue
        topic = file.stem.removeprefix("test_")
        known = names.get(file.parent, set()) - {"__init__"}
        if not any(topic == name or topic.startswith(f"{name}_") for name in known):
            wrong.append(
                f"{place}: `{package.code}/{file.parent}` has no module or package `{topic}`, or one that its name "
                f"begins with; it has {', '.join(sorted(known)) or 'none'}"
            )
    return wrong


def untested(package: Package) -> list[str]:
    """Return the modules with code that no test file is named after, each with the names that would do."""
    files, wrong = files_of(package.tests), []
    for module in modules_of(package):
        if not FUNCTION.search((REPOSITORY / package.code / f"{module}.py").read_text("utf-8")):
            continue
        named = module.parent if module.name == "__init__" else module
        if not named.name:  # the package itself
            continue
        places = [named, *(parent for parent in named.parents if parent.name)]
        allowed = [PurePosixPath(place.parent, f"test_{place.name}") for place in places]
        if allowed and not any(belongs(file, start) for file in files for start in allowed):
            wrong.append(
                f"{package.code}/{module}.py has no tests; they belong into "
                + ", else ".join(f"{package.tests}/{start}.py (or _<topic>.py)" for start in allowed)
            )
    return wrong


def belongs(file: PurePosixPath, start: PurePosixPath) -> bool:
    """Return whether a test file is `start`, or one of its topics."""
    same = file.parent == start.parent
    return same and (file.stem == start.name or file.stem.startswith(f"{start.name}_"))


@pytest.mark.parametrize("package", [*PACKAGES, *PLACED_ONLY], ids=lambda package: package.tests)
def test_each_test_file_is_named_after_the_code_that_it_tests(package: Package) -> None:
    assert not (wrong := misplaced(package)), "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.tests)
def test_the_tests_of_each_module_are_found_by_its_path(package: Package) -> None:
    assert not (wrong := untested(package)), "\n".join(wrong)


def test_tests_of_several_packages_are_in_three_folders() -> None:
    """Beside the support of all tests there are `tests/system` and `tests/trials`."""
    stray = [
        file
        for file in files_of("tests")
        if file.name.startswith("test_") and file.parts[0] not in ("system", "trials")
    ]
    assert not stray, f"move to the package that they test, to tests/system or to tests/trials: {stray}"


def test_the_tests_of_the_client_exist() -> None:
    assert not [
        file for file in (*client.TESTS, client.VERIFIES.partition("::")[0]) if not (REPOSITORY / file).is_file()
    ]
