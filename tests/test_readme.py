"""Commands of the documentation: those of the README run as typed; those of all pages exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.pages import BLOCK, NAMES, PAGES, REPOSITORY, shell_blocks
from typer.exceptions import TyperException

from poolbench_driver.cli import app

DRIVER = ".venv/bin/poolbench-driver"
MAX_README_LINES = 120
_INLINE = re.compile(r"`([^`\n]+)`")
_TARGET = re.compile(r"(?:^|\s)make ((?:[a-z_%<>-]+|[A-Z_]+=\S+)(?: (?:[a-z_-]+|[A-Z_]+=\S+))*)")


def typed_commands(text: str) -> Iterator[str]:
    """Yield the commands of a page's console blocks: the lines that start with `$ `, continued lines joined."""
    for block in shell_blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield re.sub(r"\s+# .*$", "", line.removeprefix("$ ")).strip()


def mentioned_commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of every `poolbench-driver` command in a code block or an inline code span."""
    lines = [line for block in shell_blocks(text) for line in block.replace("\\\n", " ").splitlines()]
    for code in [*lines, *_INLINE.findall(BLOCK.sub("", text))]:
        before, found, after = code.partition("poolbench-driver ")
        if found and re.fullmatch(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?", before):
            alternatives = re.sub(r"\[([^\]|]*)[^\]]*\]", r"\1", re.sub(r"\s+# .*$", "", after))
            yield shlex.split(alternatives.rstrip("; ").replace("...", ""))


@cache
def driver() -> Any:
    """Return the command line of the driver as Click knows it."""
    return typer.main.get_command(app)


def parse(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Parse arguments without running anything; an unknown subcommand or flag raises an error."""
    context = command.context_class(command, info_name=command.name, parent=parent)
    nested = getattr(command, "commands", {})
    _, rest, _ = command.make_parser(context).parse_args(args=list(arguments))
    if nested and rest:
        assert rest[0] in nested, f"No such command: {rest[0]}; there are {', '.join(nested)}"
        parse(nested[rest[0]], rest[1:], context)


@pytest.mark.parametrize("wrong", ["runs", "run --presets demo", "corpus make x", "import activations F --nam acts"])
def test_unknown_subcommands_and_flags_are_found(wrong: str) -> None:
    with pytest.raises((AssertionError, TyperException), match=r"No such (command|option)"):
        parse(driver(), wrong.split())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_driver_commands_have_their_subcommands_and_flags(page: Path) -> None:
    for arguments in mentioned_commands(page.read_text("utf-8")):
        if arguments and not arguments[0].startswith("<"):
            parse(driver(), arguments)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_shown_with_the_path_that_works(page: Path) -> None:
    wrong = [command for command in typed_commands(page.read_text("utf-8")) if command.startswith("poolbench-driver")]
    assert not wrong, f"{page.name}: poolbench-driver is not on the path; write {DRIVER}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_exist(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    targets |= {f"bench-{file.stem}" for file in (REPOSITORY / "bench").glob("*.py")}
    text = page.read_text("utf-8")
    for code in [*shell_blocks(text), *_INLINE.findall(BLOCK.sub("", text))]:
        for words in _TARGET.findall(code):
            named = {word for word in words.split() if "=" not in word and "<" not in word}
            assert named <= targets, f"{page.name}: no make target {', '.join(sorted(named - targets))}"


def test_readme_is_short() -> None:
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    assert any("docs/images/report.png" in line for line in lines[:20]), "the picture belongs to the first screen"


def commands_of(page: str) -> list[str]:
    """Return the commands of a page in their order, each once."""
    return list(dict.fromkeys(typed_commands((REPOSITORY / page).read_text("utf-8"))))


def test_readme_starts_and_stops_a_cluster() -> None:
    commands = commands_of("README.md")
    assert commands[0] == "make cluster-up" and commands[-1] == "make cluster-down"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_commands_of_readme_and_tutorial_work_as_typed(tmp_path: Path) -> None:
    """Run them in the checkout, in order, with a cluster of their own: the tutorial's before the cluster stops.

    README_STATE names the state folder of a stopped cluster that has run the demo before: `.ci/run` does
    not run it a second time.
    """
    state = os.environ.get("README_STATE") or tmp_path / "state"
    environment = {**os.environ, "POOLBENCH_STATE": str(state)}
    for name in (
        "README_STATE",
        "POOLBENCH_STORE",
        "POOLBENCH_BROKER",
        "POOLBENCH_HTTP",
        "POOLBENCH_TOKEN",
        "POOLBENCH_REAL_TEXT",
    ):
        environment.pop(name, None)
    try:
        *commands, stop = commands_of("README.md")
        (REPOSITORY / "runs/my_concept.yaml").unlink(missing_ok=True)
        for command in [*commands, *commands_of("docs/own-concepts.md"), stop]:
            done = _run(command, environment)
            assert done.returncode == 0, f"`{command}` ended with {done.returncode}: {done.stdout[-3000:]}"
    finally:
        _run("make cluster-down", environment)


def _run(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3000,
        check=False,
    )
