"""Help of every command: each option is described, with room for its description at 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from poolbench_driver.cli import app
from poolbench_driver.cli.help import CONTEXT_SETTINGS, Group
from poolbench_driver.cli.suite_options import help_rows
from poolbench_driver.contract.registry import SUITES

NARROW, ROOM = 80, 40


def commands(command: Any, parent: Any = None, name: str = "poolbench-driver") -> Iterator[tuple[Any, Any]]:
    """Yield every group and command with its context."""
    settings = CONTEXT_SETTINGS if parent is None else {}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
    context.meta["suite"] = None
    yield command, context
    if isinstance(command, Group):
        for inner in command.list_commands(context):
            yield from commands(command.commands[inner], context, inner)


ALL = {context.command_path: (command, context) for command, context in commands(typer.main.get_command(app))}


@pytest.mark.parametrize("path", ALL)
def test_every_option_is_described(path: str) -> None:
    command, context = ALL[path]
    assert command.help
    params = command.get_params(context)
    assert [param.name for param in params if not param.help] == []
    options = [param for param in params if param.param_type_name == "option"]
    assert [param.name for param in options if "list[" in param.display_type_rich(context)] == []


@pytest.mark.parametrize("path", ALL)
def test_h_is_help_and_descriptions_have_room(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(NARROW))
    command, context = ALL[path]
    assert {"-h", "--help"} == set(command.get_help_option_names(context))
    lines = command.get_help(context).splitlines()
    assert max(map(len, lines)) <= NARROW
    beside = [found.end() for line in lines if (found := re.match(r"  \S+(?: \S+)*  +(?=\S)", line))]
    below = [found.end() for line in lines if (found := re.match(r" {3,}(?=\S)", line))]
    assert beside and max(beside + below) <= NARROW - ROOM


def driver(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a script would."""
    code = "import sys; from poolbench_driver.cli import main; main()"
    environment = {"COLUMNS": str(NARROW), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_h_of_a_group_and_of_a_command() -> None:
    for command in ((), ("run",), ("import",), ("import", "saes")):
        short, long = driver(*command, "-h"), driver(*command, "--help")
        assert short.returncode == 0 and short.stdout == long.stdout != "", short.stderr


def test_markup_of_a_description_is_shown() -> None:
    """Rich takes [rows, width] for a style and leaves it out."""
    assert ".npy [rows, width]" in driver("probe", "-h").stdout


def test_run_lists_its_options_in_groups_and_the_suites() -> None:
    shown = driver("run", "-h").stdout
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Arguments:",
        "What is measured:",
        "Options of suites that read concepts:",
        "Output and progress:",
        "Dry run:",
        "Suites (run --suite NAME --help shows their options):",
    ]
    assert "\n  holmes " in shown


@pytest.mark.parametrize("order", [("--suite", "holmes", "-h"), ("--help", "--suite=holmes")])
def test_a_suite_shows_its_options_with_their_defaults(order: tuple[str, ...]) -> None:
    shown = driver("run", *order).stdout
    options, text = re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE), " ".join(shown.split())
    assert {"--sets", "--flash", "--control", "--recipe", "--seeds", "--add-bos", "--suite"} <= set(options)
    assert not {"--concepts", "--metrics", "--scorers", "--steering-layer"} & set(options)
    assert len(options) - options.count("--set") == len({*options} - {"--set"})
    assert "--flash <float> Share of the training groups" in text and "as the paper says. [default: released]" in text
    assert "[default: A1_mean, P1_last_token]" in text  # the preset's: the class has A1_mean alone


def test_a_flag_of_the_command_stays_a_flag_in_the_help_of_a_suite() -> None:
    shown = driver("run", "--suite", "poolbench", "-h").stdout
    assert "  --keep-activations / --no-keep-activations\n" in shown
    assert "--set steering.temperature=<float>" in shown and "--scorers" in shown


def test_every_setting_of_every_suite_is_described() -> None:
    for suite in SUITES.all():
        rows = dict(help_rows(suite, {"--corpus": "--corpus <str>"}, ()))
        assert [option for option, text in rows.items() if not text.partition("[default")[0]] == [], suite.id


def test_an_unknown_suite_is_one_line() -> None:
    done = driver("run", "--suite", "holms", "--help")
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "holmes" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("run",), ("run", "--suite", "holmes"), ("run", "--suite", "poolbench"), ("steer",)]
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys; from poolbench_driver.cli import app; app([*sys.argv[1:], '-h'], standalone_mode=False); "
        "print('heavy:', *({'torch', 'ray', 'vllm', 'transformers', 'spacy', 'sklearn', 'scipy'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "heavy:"
