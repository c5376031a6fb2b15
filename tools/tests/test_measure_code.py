"""tools/measure_code.py on a small repository whose figures are known."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.pages import REPOSITORY

TOOLS = REPOSITORY / "tools"

_DEEP = '''"""Lowest."""
import os  # why


def outer(a: int, b) -> int:
    """Return one."""

    def inner():
        return 1

    # a comment
    return inner()


class Public:
    def method(self, *args: int) -> None:
        """Does nothing."""
'''


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import measure_code

    return measure_code


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "house"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "deep.py").write_text(_DEEP)
    (package / "high.py").write_text('"""High."""\nfrom house import left\nfrom house.deep import outer\n')
    (package / "left.py").write_text('"""Left."""\n\n\ndef lazy() -> None:\n    import house.right\n')
    (package / "right.py").write_text('"""Right."""\nfrom house import deep, left\n')
    (tmp_path / "test_house.py").write_text("\n\n\n")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_figures_of_a_known_repository(tool: ModuleType, repository: Path) -> None:
    (repository / "src/house/right.py").write_text('"""Right."""\nfrom house import deep, left\n\n')
    found = tool.measure(repository, "HEAD")
    assert found["files"]["number"] == 5 and found["test_lines"] == 3
    assert found["against"] == {"revision": "HEAD", "lines": 1, "share": round(1 / 28, 4), "test_lines": 0}
    assert found["functions"]["number"] == 3 and found["functions"]["longest"][0] == {
        "lines": 8,
        "name": "src/house/deep.py:outer",
    }
    assert found["functions"]["code_lines"]["longest"][0]["lines"] == 4
    assert found["documented_modules"] == 1.0 and found["documented_classes"] == 0.0
    assert found["documented_functions"] == round(2 / 3, 4)
    assert found["not_imperative"] == 1 and found["imperative_functions"] == 0.5


@pytest.mark.lane(name="series")
def test_the_command_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "measures.json"
    command = [sys.executable, str(TOOLS / "measure_code.py"), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "of tests" in done.stdout
    assert json.loads(file.read_text())["lines"] > 1000
