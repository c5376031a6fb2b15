"""The tutorial of docs/operations/cluster.md, whose commands start the clusters of tests."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.pages import REPOSITORY, shell_blocks, typed_commands

_PAGE = REPOSITORY / "docs" / "operations" / "cluster.md"
_BIN = f"{Path(sys.executable).parent}/"
#: Addresses of the page: the two machines, its Redis, and the folder that they share.
HEAD, WORKER, BROKER, SHARED = "10.0.0.1", "10.0.0.2", "10.0.0.1:6390", "/shared"
#: How the page makes the password of its Redis.
PASSWORD = "PASSWORD=$(openssl rand -hex 32)"


def _text() -> str:
    return _PAGE.read_text("utf-8").partition("\n## A first cluster on two machines\n")[2].partition("\n## ")[0]


def command(part: str, replaced: Mapping[str, str]) -> list[str]:
    """Return the one command of the tutorial that holds `part` as arguments, with other texts in place of some."""
    (line,) = [line for line in typed_commands(_text()) if part in line]
    return shlex.split(_with(line, {".venv/bin/": _BIN, **replaced}))


def environment(replaced: Mapping[str, str]) -> dict[str, str]:
    """Return what a machine has that reads the file which the tutorial's second step writes."""
    (settings,) = [block for block in shell_blocks(_text()) if "export " in block]
    step = [line for line in typed_commands(f"```\n{settings}```") if "redis-server" not in line]
    (read,) = {line for line in typed_commands(_text()) if line.startswith(". ")}
    for lines in (step, [read, "env -0"]):
        script = _with("\n".join(lines), replaced)
        kept = {"PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-ec", script], env=kept, capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    return {name: value for name, value in variables.items() if name not in ("PATH", "PWD", "SHLVL", "_")}


def shown() -> Iterator[str]:
    """Yield the lines of output that the tutorial shows."""
    for block in shell_blocks(_text()):
        yield from (line for line in block.splitlines() if line and not line.startswith("$ "))


def _with(text: str, replaced: Mapping[str, str]) -> str:
    """Replace longer texts first: one may begin with another."""
    for old in sorted(replaced, key=len, reverse=True):
        text = text.replace(old, replaced[old])
    return text
