"""The files that git tracks, the Markdown pages among them, and the code that pages show."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks and that match one of the patterns, such as `*.md` or `:(glob)bench/*.py`.

    Tests look at no other files of the checkout: environments, notebooks and logs of users are not the project's.
    """
    command = ["git", "ls-files", "-z", "--cached", "--", *patterns]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        listed = done.stdout.split("\0")[:-1]
    except (OSError, subprocess.CalledProcessError):  # a checkout without git
        listed = [str(path.relative_to(REPOSITORY)) for pattern in patterns for path in _tree(pattern)]
    return sorted(REPOSITORY / name for name in listed if (REPOSITORY / name).is_file())


def _tree(pattern: str) -> Iterator[Path]:
    """Yield the matching files of a checkout without git, hidden folders left out."""
    for path in REPOSITORY.rglob(pattern.removeprefix(":(glob)")):
        if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts):
            yield path


def site_maker() -> ModuleType:
    """Return docs/make_site.py as a module."""
    spec = importlib.util.spec_from_file_location("make_site", REPOSITORY / "docs" / "make_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shell_blocks(text: str) -> list[str]:
    """Return the contents of a page's code blocks for a shell, and of those without a language."""
    return [block for language, block in BLOCK.findall(text) if language in ("", "console", "bash")]


def typed_commands(text: str) -> Iterator[str]:
    """Yield the commands of a page's console blocks: the lines that start with `$ `, continued lines joined."""
    for block in shell_blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield re.sub(r"\s+# .*$", "", line.removeprefix("$ ")).strip()


PAGES = tracked("*.md")
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]
