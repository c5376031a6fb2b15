"""Every command: help at 80 columns, documented data as JSON and CSV, no cluster, no terminal, a closed pipe, `-q`."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
import yaml
from driver.tests.conftest import Driver
from tests.waiting import PATIENCE_S

from poolbench_driver.assemble import rank_rows
from poolbench_driver.cli import app, command_line
from poolbench_driver.cli.help import CONTEXT_SETTINGS, CommandGroup
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_failures, write_state, write_table
from poolbench_driver.results import result_table
from poolbench_driver.stages.failure import Failure

NUM_COLUMNS, ROOM = 80, 40
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "commands.yaml"


def commands(command: Any, parent: Any = None, name: str = "poolbench-driver") -> Iterator[tuple[Any, Any]]:
    """Yield every group and command with its context."""
    settings = CONTEXT_SETTINGS if parent is None else {}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
    context.meta["suite"] = None
    yield command, context
    if isinstance(command, CommandGroup):
        for inner in command.list_commands(context):
            yield from commands(command.commands[inner], context, inner)


ALL = {context.command_path: (command, context) for command, context in commands(typer.main.get_command(app))}
#: Keys of JSON by command, as the documentation lists them; those of a list are the keys of its rows.
DOCUMENTED = {
    command: (prints["json"], re.findall(r"`([a-z0-9_]+)`", prints["json"]))
    for command, prints in yaml.safe_load(DOCUMENTATION.read_text("utf-8")).items()
}
#: Arguments for those that need no service, in a folder with two runs; how the others answer is tested with services.
CASES = {
    "run --dry-run": "run --dry-run --metrics d1",
    "leaderboard": "leaderboard",
    "ranks": "ranks",
    "compare": "compare latest first",
    "show": "show latest",
    "status": "status",
    "watch": "watch",
    "ls": "ls strategies",
    "plan-data": "plan-data --effect .05 --width 64",
    "gc": "gc",
    "doctor": "doctor",
    "config check": "config check run.yaml",
    "concept ls": "concept ls",
    "concept check": "concept check mine --positives texts.txt --negatives others.txt",
    "dead-letters ls": "dead-letters ls",
    "vectors ls": "vectors ls --run latest",
}
FAILING = ("status", "doctor", "concept check")


def test_help_lists_every_command_in_a_section_and_first_what_a_new_user_needs() -> None:
    group, context = ALL["poolbench-driver"]
    sections = re.split(r"^(\w[\w ]*):\n", group.get_help(context), flags=re.MULTILINE)[3:]
    listed = {
        title: re.findall(r"^  ([a-z-]+) ", text, re.MULTILINE)
        for title, text in zip(*[iter(sections)] * 2, strict=True)
    }
    assert list(listed) == ["First steps", "Measure", "Results", "Ask a service", "Data", "Operate"]
    assert listed["First steps"] == ["run", "view", "leaderboard", "steer", "status"]
    assert sorted(name for names in listed.values() for name in names) == sorted(group.list_commands(context))


def test_a_command_that_is_built_alone_is_that_of_the_whole() -> None:
    def options(command: Any) -> list[Any]:
        inner = getattr(command, "commands", {}).items()
        return [[param.opts for param in command.params], *((name, options(nested)) for name, nested in inner)]

    whole = typer.main.get_command(app).commands
    for name, command in whole.items():
        assert command_line(name).commands.keys() == {name}
        assert options(command_line(name).commands[name]) == options(command)
    for name in (None, "--version", "nonsense"):
        assert command_line(name).commands.keys() >= whole.keys()


@pytest.mark.parametrize("path", ALL)
def test_every_option_is_described_and_the_shared_ones_are_there(path: str) -> None:
    command, context = ALL[path]
    assert command.help
    params = command.get_params(context)
    assert [param.name for param in params if not param.help] == []
    options = {param.name: param for param in params if param.param_type_name == "option"}
    assert [name for name, option in options.items() if "list[" in option.display_type_rich(context)] == []
    assert ("as_csv" in options) == ("as_json" in options)
    assert ("quiet" in options) == (not hasattr(command, "commands"))


@pytest.mark.parametrize("path", ALL)
def test_h_is_help_and_descriptions_have_room(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(NUM_COLUMNS))
    command, context = ALL[path]
    assert {"-h", "--help"} == set(command.get_help_option_names(context))
    lines = command.get_help(context).splitlines()
    assert max(map(len, lines)) <= NUM_COLUMNS
    beside = [found.end() for line in lines if (found := re.match(r"  \S+(?: \S+)*  +(?=\S)", line))]
    below = [found.end() for line in lines if (found := re.match(r" {3,}(?=\S)", line))]
    assert beside and max(beside + below) <= NUM_COLUMNS - ROOM


def test_the_documentation_lists_every_command_that_prints_data() -> None:
    data = {
        path.partition(" ")[2] for path, (command, _) in ALL.items() if "as_json" in {p.name for p in command.params}
    }
    assert data == {command for command in DOCUMENTED if " --" not in command}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with two finished runs and files of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(NUM_COLUMNS))
    for seed, name in enumerate(("first", "second")):
        folder = create_run(tmp_path / "runs", load_run_config(None, {"preset": "demo", "seed": seed}))
        folder.path = folder.path.rename(tmp_path / "runs" / name)
        write_state(folder, "done", tasks=2, tasks_done=2, failures=1)  # type: ignore[arg-type]
        cells = product(("A1_mean", "A2_max"), ("contrast", "causation"))
        rows = [figure(strategy, concept) for strategy, concept in cells]
        identity = {**rows[0], "concept": None, "layer": None, "split": None}
        ranks = [{**identity, **rank} for rank in rank_rows(rows, SUITES.get("poolbench").board)[0]]
        write_table(folder, "results", result_table([*rows, *ranks]))
        folder.file("report/index.html").write_text("<!doctype html>")
        write_failures(folder, [Failure("0" * 24, "prober.probe", "failed", "too few passages")])  # type: ignore[arg-type]
        scores = [{"concept": "contrast", "strategy": "A1_mean", "layer": 2, "passage_id": "p1", "split": "train",
                   "fold": 0, "label": 1, "group": "g", "score": 0.5}]  # fmt: skip
        write_table(folder, "passage_scores", pa.Table.from_pylist(scores))
        write_table(folder, "directions", pa.Table.from_pylist([]))
    (tmp_path / "runs/latest").unlink()
    (tmp_path / "runs/latest").symlink_to("second")
    (tmp_path / "run.yaml").write_text("preset: demo\nconcepts: [contrast]\n")
    (tmp_path / "texts.txt").write_text("\n".join(f"It rained, but boat {number} sailed." for number in range(12)))
    (tmp_path / "others.txt").write_text("\n".join(f"It rained, and boat {number} sailed." for number in range(12)))
    return tmp_path


def figure(strategy: str, concept: str) -> dict[str, Any]:
    return {
        "run_id": "r", "suite": "poolbench", "protocol": "corrected", "budget": "demo", "model": "demo", "layer": 2,
        "model_revision": "1", "dataset_revision": "d1", "split": "train", "metric": "d1.auroc", "metric_version": 1,
        "strategy": strategy, "strategy_version": 1, "concept": concept, "params": "{}", "status": "ok",
        "value": 0.9 if strategy == "A1_mean" else 0.8,
    }  # fmt: skip


@pytest.mark.parametrize("command", CASES)
def test_data_are_those_of_the_documentation(command: str, place: Path, cli: Driver) -> None:
    cell, keys = DOCUMENTED[command]
    arguments = CASES[command].split()
    printed = {form: cli(*arguments, form, "-q") for form in ("--json", "--csv")}
    for done in printed.values():
        assert "Traceback" not in done.stderr and "secret-token" not in done.stdout + done.stderr
        assert command in FAILING or (done.returncode, done.stderr) == (0, "")
    content = json.loads(printed["--json"].stdout)
    for entry in content if cell.startswith("list of") else [content]:
        assert keys == list(entry) if "..." not in cell else set(keys) <= entry.keys()
    table = list(csv.reader(io.StringIO(printed["--csv"].stdout)))
    assert all(len(line) == len(table[0]) for line in table)
    if cell.startswith("list of") and content:
        assert table[0] == list(content[0]) and len(table) == len(content) + 1
    if command in ("ls", "status", "show", "watch"):
        assert "\x1b" not in cli(*arguments).stdout  # which is not a terminal


@pytest.mark.parametrize("command", ["ls strategies", "ls suites", "ls runs", "status"])
def test_on_a_terminal_tables_fit_into_80_columns(
    command: str, place: Path, driver: Driver, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = driver({**environment, "COLUMNS": str(NUM_COLUMNS), "NO_COLOR": "1"}, *command.split()).stdout
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert lines and max(map(len, lines)) <= NUM_COLUMNS


#: What needs a cluster, and a request of it that is complete.
OF_A_CLUSTER = (
    "run", "status", "gc", "cancel", "embed --input texts.txt --output v.npy", "explain text", "score text --scorer x",
    "steer text", "find contrast --output v", "vectors serve", "dead-letters ls", "import saes x", "ls scorers",
    "import activations x --name n --corpus x", "import scorers x --concepts contrast", "export run --output x",
    "concept rm mine",
)  # fmt: skip


@pytest.mark.parametrize("command", OF_A_CLUSTER)
def test_without_a_cluster_one_line_says_what_to_do(
    command: str, place: Path, driver: Driver, environment: dict[str, str]
) -> None:
    nothing = {name: value for name, value in environment.items() if not name.startswith("POOLBENCH_")}
    done = driver({**nothing, "POOLBENCH_STATE": str(place / "state")}, *command.split())
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_name_is_a_run_a_cell_a_passage_or_a_task(place: Path, cli: Driver) -> None:
    cell = Run(place / "runs/second").rows("results")[0]["cell_id"]

    def shown(*names: str) -> dict[str, Any]:
        return dict(json.loads(cli("show", *names, "--json").stdout))

    assert shown("first") | {"kind": "run", "run": "first", "model": "demo", "tasks": 2} == shown("first")
    assert shown(cell[:8], "--run", "first") | {"run": "first", "cell_id": cell, "value": 0.9} == shown(
        cell, "--run", "first"
    )
    passage = shown("p1")
    assert (passage["kind"], passage["of"], passage["rows"][0]["score"]) == ("passage", "contrast", 0.5)
    assert shown("0" * 24)["reason"] == "too few passages"
    wrong = cli("show", "frist")
    assert wrong.returncode == 2 and "did you mean first" in wrong.stderr
    assert "too few passages" in cli("show", "0" * 24).stdout


def test_notes_are_left_out_and_come_back_with_an_error(
    place: Path, driver: Driver, environment: dict[str, str]
) -> None:
    nothing = {name: value for name, value in environment.items() if not name.startswith("POOLBENCH_")}
    without = {**nothing, "POOLBENCH_STATE": str(place / "state")}
    assert "no cluster is running" in driver(without, "ls", "concepts").stderr
    assert driver(without, "ls", "concepts", "-q").stderr == ""
    failed = driver(environment, "-h", "-q").stderr + driver(environment, "status", "-q", "--json").stderr
    assert "secret" not in failed


def test_a_file_of_settings_is_written_and_checked(place: Path, cli: Driver) -> None:
    for template in ("demo", "small", "holmes", "ce-bench", "humanoid"):
        done = cli("init", f"{template}.yaml", "--template", template)
        assert done.returncode == 0, done.stderr
        written = (place / f"{template}.yaml").read_text("utf-8")
        assert written.startswith(f"# yaml-language-server: $schema={template}.schema.json\n")
        suite = "poolbench" if template in ("demo", "small") else template
        preset = template if suite == "poolbench" else "demo"
        assert load_run_config(place / f"{template}.yaml", {}) == load_run_config(
            None, {"suite": suite, "preset": preset}
        )
        uncommented = re.sub(r"^#(?! \S)", "", written, flags=re.M)
        (place / "all.yaml").write_text(uncommented)
        assert load_run_config(place / "all.yaml", {}) == load_run_config(None, {"suite": suite, "preset": preset})
        schema = json.loads((place / f"{template}.schema.json").read_text("utf-8"))
        assert {"preset", "limit", "model"} <= schema["properties"].keys() and "required" not in schema
    again = cli("init", "demo.yaml", "--template", "demo")
    assert again.returncode == 2 and "exists already" in again.stderr
    assert "did you mean demo" in cli("init", "x.yaml", "--template", "dmeo").stderr
    assert "--template" in cli("init", "x.yaml").stderr  # nobody can be asked here
    (place / "wrong.yaml").write_text("preset: demo\nconcepts: [contrst]\n")
    wrong = cli("config", "check", "wrong.yaml", "--json")
    assert wrong.returncode == 2 and wrong.stdout == "" and "did you mean contrast" in wrong.stderr


def test_five_questions_make_a_file(place: Path, cli: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = "\n".join(["poolbnch", "poolbench", "demo", "demo", "contrast,causation", "planted"]) + "\n"
    stdin = io.StringIO(answers)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("poolbench_driver.cli.settings_file._is_asked", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = cli("init", "asked.yaml")
    assert done.returncode == 0, done.stderr
    assert "did you mean poolbench" in done.stderr
    config: Any = load_run_config(place / "asked.yaml", {})
    assert (config.concepts, config.corpus.source) == (("contrast", "causation"), "planted")


def test_the_page_of_a_run_is_where_it_is_said(place: Path, cli: Driver) -> None:
    done = cli("open", "first")
    assert done.returncode == 0 and Path(done.stdout.strip()).read_text("utf-8").startswith("<!")


def test_a_closed_output_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch, cli: Driver) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert (done := cli("ls", "models")).returncode == 0, done.stderr


def test_a_closed_pipe_ends_a_command_without_a_traceback() -> None:
    code = "import sys; from poolbench_driver.cli import main; main()"
    command = [sys.executable, "-c", code, "ls", "probing-sets", "--wide"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(PATIENCE_S) == 1 and said == ""
