"""Commands of the documentation: those of the README run as typed; those of all pages exist."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import typer
import yaml
from driver.tests.console.conftest import SCREENS, check_reading, chromium, opening
from tests.pages import BLOCK, NAMES, PAGES, REPOSITORY, shell_blocks, tracked, typed_commands
from tests.system.conftest import SHARED

from poolbench.concepts import CONCEPTS
from poolbench.config import MODEL_PRESETS, resolve_layers, resolve_model
from poolbench.pooling.registry import select_strategies
from poolbench.settings import ClusterSettings
from poolbench_driver.cli import app
from poolbench_driver.cli.help import CommandGroup
from poolbench_driver.cli.run import RunCommand
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run
from poolbench_driver.vectors.card import Vector

DRIVER = ".venv/bin/poolbench-driver"
MAX_README_LINES = 120
#: The page of a client that pip, pipx or uv installed, so that its command is on the path.
INSTALLED = "client.md"
#: Concepts and strategies that a page itself adds.
OF_EXAMPLES = ("gratitude", "money", "apology", "politeness", "concession", "Y1_verbs")
_INLINE = re.compile(r"`([^`\n]+)`")
_TARGET = re.compile(r"(?:^|\s)make ((?:[a-z_%<>-]+|[A-Z_]+=\S+)(?: (?:[a-z_-]+|[A-Z_]+=\S+))*)")


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


def parse(command: Any, arguments: list[str], parent: Any = None) -> dict[str, Any]:
    """Return the options of arguments without running anything; an unknown subcommand or flag raises an error."""
    context = command.context_class(command, info_name=command.name, parent=parent)
    if isinstance(command, RunCommand):
        arguments = command.with_settings(list(arguments))
    names = command.list_commands(context) if isinstance(command, CommandGroup) else []
    nested = {name: command.commands[name] for name in names}
    options, rest, _ = command.make_parser(context).parse_args(args=list(arguments))
    if nested and rest:
        assert rest[0] in nested, f"No such command: {rest[0]}; there are {', '.join(nested)}"
        return parse(nested[rest[0]], rest[1:], context)
    return dict(options)


def refuse_unknown(options: dict[str, Any]) -> None:
    """Raise a PoolbenchError for options with a concept, strategy or layer that a run would refuse."""
    for name in [*_listed(options, "concept"), *_listed(options, "concepts")]:
        if name not in OF_EXAMPLES:
            CONCEPTS.get(name)
    names = [*_listed(options, "strategy"), *_listed(options, "strategies")]
    select_strategies(name for name in names if name not in OF_EXAMPLES)
    settings = dict(each.split("=", 1) for each in options.get("sets") or ())
    layers = [
        *_listed(options, "layer"),
        *_listed(options, "layers"),
        *settings.get("layers", "").strip("[]").split(","),
    ]
    layers += [each.split(":")[1] for each in options.get("edit") or ()]
    for model in _listed(options, "model") or ["demo"]:
        resolve_layers([yaml.safe_load(layer) for layer in layers if layer], num_blocks(model))


def _listed(options: dict[str, Any], name: str) -> list[str]:
    given = options.get(name) or ()
    return given.split(",") if isinstance(given, str) else list(map(str, given))


def num_blocks(model: str) -> int:
    """Return the depth of a preset."""
    if shape := MODEL_PRESETS[model].shape:
        return shape[0]
    return int(json.loads(Path(resolve_model(model).source, "config.json").read_text())["num_hidden_layers"])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_driver_commands_have_their_flags_and_name_what_exists(page: Path) -> None:
    """Subcommands and flags; concepts, strategies, models and layers, but for those of imported models of the user."""
    for arguments in mentioned_commands(page.read_text("utf-8")):
        if arguments and not arguments[0].startswith("<"):
            options = parse(driver(), arguments)
            if arguments[0] != "import":
                refuse_unknown(options)


def test_configurations_of_the_page_on_runs_are_valid() -> None:
    found = re.findall(r"```yaml\n(# run.yaml.*?)```", (REPOSITORY / "docs" / "runs.md").read_text("utf-8"), re.DOTALL)
    assert found
    for text in found:
        config = load_run_config(None, yaml.safe_load(text))
        resolve_layers(list(config.layers), num_blocks(config.model))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_shown_with_the_path_that_works(page: Path) -> None:
    if page.name == INSTALLED:
        return
    wrong = [command for command in typed_commands(page.read_text("utf-8")) if command.startswith("poolbench-driver")]
    assert not wrong, f"{page.name}: poolbench-driver is not on the path; write {DRIVER}"


#: Head of the table that says which command makes what the source of a suite shows.
SOURCE_HEAD = "| the source's figure or table | our command | needs |"


@pytest.mark.parametrize("page", tracked(":(glob)docs/suites/*.md"), ids=lambda page: page.stem)
def test_a_suites_page_says_which_command_makes_what_its_source_shows(page: Path) -> None:
    """What needs nothing is typed on the page, so that a lane runs it; others say what they need."""
    text = page.read_text("utf-8")
    begin = text.index("\n## ")
    assert text[begin:].startswith("\n## The source\n") and SOURCE_HEAD in text, f"{page.name} has no such table"
    table = text[text.index(SOURCE_HEAD) :].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    typed = set(typed_commands(text))
    assert len(rows) >= 4
    for figure, command, needs in rows:
        assert figure and (needs or command.strip("`") in typed), f"{page.name}: no console block has {command}"
        assert command == "-" or re.fullmatch(r"`\.venv/bin/[^`]+`", command), f"{page.name}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_exist(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    targets |= {f"bench-{file.stem}" for file in tracked(":(glob)bench/*.py")}
    text = page.read_text("utf-8")
    for code in [*shell_blocks(text), *_INLINE.findall(BLOCK.sub("", text))]:
        for words in _TARGET.findall(code):
            named = {word for word in words.split() if "=" not in word and "<" not in word}
            assert named <= targets, f"{page.name}: no make target {', '.join(sorted(named - targets))}"


def test_readme_is_short() -> None:
    lines = (REPOSITORY / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    assert any("docs/images/report.png" in line for line in lines[:25]), "the picture belongs to the first screen"


def commands_of(page: str) -> list[str]:
    """Return the commands of a page in their order, each once."""
    return list(dict.fromkeys(typed_commands((REPOSITORY / page).read_text("utf-8"))))


#: The command that may run these tests themselves; `.ci/run` calls it.
CALLER = "make test"
#: The command that takes minutes; the lane `real-text` runs it with fewer strategies.
OF_MINUTES = f"{DRIVER} run --model smollm2-135m"


def test_readme_starts_and_stops_a_cluster() -> None:
    commands = commands_of("README.md")
    assert commands[:3] == ["make demo", OF_MINUTES, CALLER] and commands[-1] == "make cluster-down"
    assert any(CALLER in line for line in (REPOSITORY / "README.md").read_text().splitlines()[:20])


#: Pages of single questions, and what their commands print after a demo.
QUESTIONS = {
    "docs/suites/poolbench.md": (
        r"index\.html",
        r"S1_attention:corrected=false +0\.\d",
        r"\| strategy \| .*d1\.mlp_gain",
        r"of 3 common cells",
        r"290,859,141",
    ),
    "docs/read-a-board.md": (r"mean rank \(D1\)",),
    "docs/explain.md": (
        r"However .*0\.05",
        r"ides .*0\.05",
        r"projection [+-]\d+\.\d+, the sum of the contributions",
        "P1_last_token at layer 4",
    ),
    "docs/sharing.md": (
        r"d1: passed: \d+ figures are what their scores give",
        r"rerun: passed: draw \d+: \d+ figures of 1 cells agree",
        r"index\.html: \d+ lines; 1 of 1 bundles hold",
        r"all files are as their checksums say",
    ),
    "docs/queries.md": (
        r'"vectors":',
        r'"contribution":null',
        r'"metric":"d1\.auroc","direction":null,"value":1\.0',
        r'"scores":\[(0\.[89]|1\.0)',  # of contrast, for a sentence with "but"
        r"Therefore,|because|as a result",
        r"d1\.auroc +│ 0\.9",
        r'"direction":\[',
    ),
    "docs/embedding.md": (r"demo\+A1_mean@4 2 256", r'"object":"embedding"', r"\(1, 256\)"),
    "docs/python.md": (
        r"To separate",
        r"done 0",
        r"the same figures in \d+ common cells",
        r"\(2, 256\) demo",
        r"unsteered",
        r"strength 0\.5, \d+ of \d+ positions changed",
        r"\['ok', 'ok', 'ok', 'ok', 'ok'\]",
    ),
    "docs/suites/humanoid.md": (
        r"\d of 6 fine-tunes moved the words more than all 5 neutral ones do",
        r"\| epochs +\| sentences +\| fine-tune",
        r"One word in place of a list",
        r"\b0 of 53 tasks to do",
        r"\| bed-high-0 +\| 6",
        r"below 5 there is no null",
        r"fond: epoch 4 of 4, loss",
        r"\| hedging +\| bed-high-0",
    ),
    "docs/suites/holmes.md": (
        r"demo \w+ (final|2) leads: it wins \d+ % of its comparisons over 15 sets",
        r"\| demo A1_mean embedding +\|",
        r"over 2 sets",
        r"\| demo/random_weights A1_mean final +\|",
        r"demo \w+ \S+ MLP 64",
        r"vectors bag_of_words 300",
    ),
    "docs/suites/ce-bench.md": (
        r"(All|\d of) 6 autoencoders beat random directions of equal width and L0",
        r"\b0 of 3 tasks to do",
        r"\| coordinates 3 +\| 3 \| 512",
        r"By the published definition",
        r"│ topk-2048 +│ 1680 +│ warmth",
        r"of topk-512 at layer 3 that answer to warmth",
        r"direction: features 976, 1680 of topk-2048 at layer 3",
    ),
    "docs/suites/data-requirements.md": (
        r"distinguish the two sides of \d of 12 comparisons",
        r"\b0 of 17 tasks to do",
        r"MLP 20 +hedging",
        r"300 examples of 1 set",
        r"vectors mine +planted-relation",
        r"\bsmallest_n\b",
    ),
    "docs/runs.md": (
        "tasks to do",
        "done",
        "- run: ",
        r"index\.html",
        "licence",
        "training passages",
        "no dead letters",
        "could go",
    ),
    "docs/own-vector.md": (
        r"moves the score of concession by .* on 10 openings that the choice never saw",
        r"necessity\.drop",
        r"control-vector-scaled concession\.gguf",
        r"demo\+concession@\S+: ?\w",
    ),
}
SUITE_PAGES = "docs/suites/"
#: Pages whose runs take minutes.
LONG_PAGES = ("docs/own-vector.md", "docs/sharing.md", SUITE_PAGES)
#: Runs the cells of a notebook as IPython does, without Jupyter: what a cell ends with is drawn.
CELLS = """
import ast, json, sys
cells = [cell for cell in json.load(open(sys.argv[1]))["cells"] if cell["cell_type"] == "code"]
for cell in cells:
    *body, last = ast.parse("".join(cell["source"])).body
    is_shown = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body + ([] if is_shown else [last]), []), "cell", "exec"))
    value = eval(compile(ast.Expression(last.value), "cell", "eval")) if is_shown else None
    print("cell", type(value).__name__, len(value._repr_html_()) if hasattr(value, "_repr_html_") else value)
"""
NOTEBOOKS = tracked(":(glob)docs/examples/*.ipynb")
#: Commands of docs/runs.md that a local cluster answers in seconds, without a GPU, a hub or archives.
ANSWERED = re.compile(
    r"poolbench-driver (?:run --set \S+ --set \S+ --dry-run|ls |leaderboard|report|plan-data|export run|status|"
    r"dead-letters|gc$)"
)
#: Whose requests `tests/check_real_model.py` sends, which has its engine: here it would take the demo model's place.
PRETRAINED = '"model": "smollm2-135m"'


def lane_of(page: str) -> pytest.MarkDecorator:
    """Return the lane that types a page."""
    return pytest.mark.lane(name="tutorials") if page.startswith(LONG_PAGES) else pytest.mark.lane(name="pages")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader who has typed the README in the checkout; the cluster is stopped at the end.

    TEST_CLUSTER names the state folder of a cluster that has run the demo before: it need not run a second time.
    """
    state = REPOSITORY / SHARED if SHARED else tmp_path_factory.mktemp("state")
    others = ("POOLBENCH_STORE", "POOLBENCH_BROKER", "POOLBENCH_HTTP", "POOLBENCH_TOKEN", "POOLBENCH_REAL_TEXT")
    environment = {name: value for name, value in os.environ.items() if name not in (*others, "TEST_CLUSTER")}
    environment["POOLBENCH_STATE"] = str(state)
    *commands, stop = [command for command in commands_of("README.md") if command not in (CALLER, OF_MINUTES)]
    try:
        for command in commands:
            _type(command, environment)
        yield environment
    finally:
        _type(stop, environment)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=lane_of(page)) for page in QUESTIONS])
def test_commands_of_a_page_work_as_typed(page: str, tmp_path: Path, reader: dict[str, str]) -> None:
    begun_s = time.time()
    _ask(page, QUESTIONS[page], tmp_path, reader)
    if page == "docs/own-vector.md":
        _check_vector(tmp_path, reader)
    if page.startswith(SUITE_PAGES):
        views = [view for view in REPOSITORY.glob("runs/*/report/view.json") if view.stat().st_mtime > begun_s]
        _check_screens(view.with_name("index.html") for view in views)


@pytest.mark.lane(name="pages")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_run(notebook: Path, tmp_path: Path, reader: dict[str, str]) -> None:
    """Each in a process of its own, beside the runs and the state folder of a page."""
    _bring(tmp_path, reader)
    done = _run(f".venv/bin/python -c {shlex.quote(CELLS)} {notebook}", reader, tmp_path)
    assert done.returncode == 0 and "cell Explained" in done.stdout, done.stdout[-3000:]


@pytest.mark.lane(name="pages")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", ["docs/own-concepts.md", "docs/own-probing-sets.md"])
def test_tutorials_work_as_typed_in_the_checkout(page: str, reader: dict[str, str]) -> None:
    (REPOSITORY / "runs/my_concept.yaml").unlink(missing_ok=True)
    for command in typed_commands((REPOSITORY / page).read_text("utf-8")):
        _type(command, reader)


def _check_vector(folder: Path, environment: dict[str, str]) -> None:
    """The vector is that of its run, its gain is of openings that did not choose it; the same search does no work."""
    vector = Vector.load(folder / "vectors/concession")
    figures = {measure.name: measure for measure in vector.card.measures if measure.strength is None}
    gain, naive = figures["find.gain"].value, figures["find.naive_gain"].value
    assert vector.card.concept == "concession" and figures["find.gain"].n == 10 and gain is not None
    assert naive is not None and figures["find.optimism"].value == pytest.approx(naive - gain)
    assert figures["damage.strength_at_1_percent"].n and figures["necessity.drop"].n
    source = Run(folder / "runs" / str(vector.card.source.run))
    (steered,) = source.rows("results", cell_id=vector.card.source.cell)
    assert steered["strategy"].startswith(str(vector.card.strategy)) and (steered["layer"],) == vector.card.layers
    (command,) = [command for command in commands_of("docs/own-vector.md") if "find concession" in command]
    again = _run(f"{command} --display json", environment, folder)
    assert again.returncode == 0 and '"reused": false' not in again.stdout, again.stdout[-3000:]
    assert Vector.load(folder / "vectors/concession").card == vector.card


def _check_screens(pages: Iterable[Path]) -> None:
    """Read the pages of some runs on every screen; there is at least one."""
    files = list(pages)
    assert files
    with chromium() as browser, opening(browser) as opened:
        for file, screen in product(files, SCREENS):
            check_reading(opened(file.resolve().as_uri(), *screen))


def _bring(folder: Path, environment: dict[str, str]) -> None:
    """Give a folder what the reader of a page has in it."""
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")
    (folder / ".poolbench").symlink_to(environment["POOLBENCH_STATE"])
    (folder / "runs").symlink_to(REPOSITORY / "runs")
    texts = ["It rained, although the sun shone.", "We stayed because of the rain."]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    labels = np.repeat([1, 0], 20)
    vectors = np.random.default_rng(0).normal(size=(40, 8)) + labels[:, None]
    for name, array in {"vectors": vectors, "labels": labels, "documents": np.arange(40)}.items():
        np.save(folder / f"{name}.npy", array)
    for name, word in {"with": "although", "without": "and"}.items():
        (folder / f"{name}.txt").write_text("".join(f"It rained {word} {n} boats left.\n" for n in range(6)))


def _ask(page: str, expected: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a page in one shell, in a folder with the files that its reader brings."""
    _bring(folder, environment)
    with patch.dict(os.environ, environment):
        address = ClusterSettings.load().http_address
    commands = [command.replace("http://127.0.0.1:8000", address) for command in commands_of(page)]
    if page == "docs/runs.md":
        commands = [command for command in commands if ANSWERED.search(command)]
    commands = [command for command in commands if PRETRAINED not in command]
    found = BLOCK.findall((REPOSITORY / page).read_text("utf-8"))
    for language, code in found:
        if language == "yaml" and (name := re.match(r"# (\w+\.yaml)\n", code)):
            (folder / name[1]).write_text(code)
    blocks = [code.replace("http://127.0.0.1:8000", address) for language, code in found if language == "python"]
    if blocks:
        shown = ["print(vectors.shape)"] if page == "docs/embedding.md" else []
        commands.append(".venv/bin/python - <<'EOF'\n" + "\n".join([*blocks, *shown, "EOF"]))
    done = _run("\n".join(["set -e", *commands]), environment, folder)
    assert done.returncode == 0 and '{"error"' not in done.stdout, f"{page}: {done.stdout[-3000:]}"
    missing = [each for each in expected if not re.search(each, done.stdout)]
    assert not missing, f"{page} does not print {missing}: {done.stdout}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_hold_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and not [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None]


def _type(command: str, environment: dict[str, str]) -> None:
    """Run a command in the checkout; it must end well."""
    done = _run(command, environment)
    assert done.returncode == 0, f"`{command}` ended with {done.returncode}: {done.stdout[-3000:]}"


def _run(command: str, environment: dict[str, str], folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3000,
        check=False,
    )
