"""Plug-ins of other packages: those under docs/examples, really installed, that of a page, and some that go wrong."""

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from tests.examples import EXAMPLES, install_example


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example in it as pip installs it, without network."""
    return install_example("sentence-ends", tmp_path_factory.mktemp("plugin"))


def run(site: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own that finds the packages of ``site``."""
    environment = {**os.environ, **settings, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def listing(site: Path, kind: str = "strategies") -> subprocess.CompletedProcess[str]:
    """``poolbench-driver ls strategies --json``."""
    return run(site, "-m", "poolbench_driver.cli", "ls", kind, "--json")


USE = """
import numpy as np, torch
from poolbench.pooling import TokenContext, Words
from poolbench.pooling.batch import Weighing, Request, pool_layer

words = Words(
    start=np.array([0, 3, 5, 8]), end=np.array([2, 5, 6, 10]), upos=["PRON", "VERB", "PUNCT", "VERB"],
    dep=["nsubj", "root", "punct", "root"], head=[1, 1, 1, 3], lemma=["I", "go", ".", "stop"], entity=[""] * 4,
    sentence=np.array([0, 0, 0, 1]), clause=np.zeros(4), keyword=np.zeros(4, dtype=bool),
)
context = TokenContext("p", np.array([[0, 2], [3, 5], [5, 6], [8, 10]]), np.zeros(4, dtype=bool), words=words)
states = torch.tensor([[1.0, 0], [2, 0], [9, 9], [4, 6]])
requests = [Request.of("Y2_sentence_ends"), Request.of("Y2_sentence_ends", {"num_words": 2})]
vectors, outcomes, _ = pool_layer([states], Weighing.of([context], requests))
assert vectors[0, 0].tolist() == [3, 3] and outcomes[0][0].token_share == 0.5
np.testing.assert_allclose(vectors[0, 1], [7 / 3, 2], rtol=1e-6)
"""


def test_the_example_pools(installed: Path) -> None:
    done = run(installed, "-c", USE)
    assert done.returncode == 0, done.stderr


GOOD = """
from poolbench.pooling import STRATEGIES

@STRATEGIES.register("Y3_{name}", version=1, family="position", summary="the first token", board="extended")
def first(context):
    return context.mean_of(context.real[:1])
"""


def package(site: Path, name: str, code: str) -> None:
    """A module of this name as an installed package whose entry point is the module."""
    (site / f"{name}.py").write_text(code.replace("{name}", name))
    write_metadata(site, name, "0.3", {"poolbench.pooling": {"point": name}})


def write_metadata(site: Path, name: str, version: str, entry_points: dict[str, dict[str, str]]) -> None:
    """What pip writes beside an installed package."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for group, points in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_the_example_of_the_page_registers(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "extending.md").read_text("utf-8")
    blocks = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", page, re.DOTALL))
    project = tomllib.loads(blocks.pop("pyproject.toml"))["project"]
    (tmp_path / "poolbench_example").mkdir()
    (tmp_path / "poolbench_example" / "__init__.py").touch()
    for name, code in blocks.items():
        (tmp_path / name).write_text(code, "utf-8")
    write_metadata(tmp_path, project["name"], project["version"], project["entry-points"])
    done = run(tmp_path, "-c", USE_OF_THE_PAGE)
    assert done.returncode == 0, done.stderr


USE_OF_THE_PAGE = """
import numpy as np
from poolbench.concepts import CONCEPTS
from poolbench.directions import DirectionContext, compute_direction
from poolbench.pooling import STRATEGIES, TokenContext, Words

assert list(CONCEPTS.get("politeness").neighbours) == ["planning", "deference"]
labels, none = np.array([1, 1, 0, 0]), np.empty((0, 2), dtype=int)
vectors = np.array([[2.0, 0.0], [4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
found = compute_direction("Y_median", DirectionContext(vectors, labels, none))
assert found.vector.tolist() == [1.0, 0.0] and found.raw_norm == 3.0
words = Words(
    start=np.array([0, 5]), end=np.array([4, 8]), upos=["NOUN", "VERB"], dep=["nsubj", "root"], head=[1, 1],
    lemma=["bird", "fly"], entity=["", ""], sentence=np.zeros(2), clause=np.zeros(2),
    keyword=np.zeros(2, dtype=bool),
)
context = TokenContext("p", np.array([[0, 4], [5, 8]]), np.zeros(2, dtype=bool), words=words)
assert STRATEGIES.get("Y1_verbs").weigh(context).values.tolist() == [0.0, 1.0]
assert STRATEGIES.get("Y1_verbs").resolve() == {"with_auxiliaries": False}
"""


def test_a_plug_in_that_fails_is_named(tmp_path: Path) -> None:
    """With package and version, in one line; `shared/tests/test_registry.py` has the ways to fail."""
    package(tmp_path, "wrongly", GOOD + "\nraise RuntimeError('half-way')")
    done = listing(tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    shown = " ".join(done.stderr.split())
    assert "package wrongly 0.3" in shown and "RuntimeError: half-way" in shown


def test_a_package_that_is_found_twice_is_loaded_once(tmp_path: Path) -> None:
    for site in (tmp_path / "one", tmp_path / "two"):
        site.mkdir()
        package(site, "agood", GOOD)
    done = listing(Path(os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")])))
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in json.loads(done.stdout)].count("Y3_agood") == 1


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example("best-layer", tmp_path_factory.mktemp("suite"))


def test_a_suite_is_listed_and_its_settings_are_options(suite: Path, tmp_path: Path) -> None:
    listed = {row["id"]: row["summary"] for row in json.loads(listing(suite, "suites").stdout)}
    assert listed["best_layer"] == "at which layer does a linear probe separate a concept best?"
    assert set(listed) == {"poolbench", "planted", "humanoid", "holmes", "ce-bench", "data-requirements", "best_layer"}
    described = run(suite, "-m", "poolbench_driver.cli", "run", "--suite", "best_layer", "--help").stdout
    assert "--pooling <str>" in described and "strategy whose vectors are probed." in " ".join(described.split())
    dry = ("-m", "poolbench_driver.cli", "run", "--suite", "best_layer", "--dry-run", "--pooling")
    cluster = {"POOLBENCH_STORE": f"file://{tmp_path}/store", "POOLBENCH_BROKER": f"filesystem://{tmp_path}/queue"}
    cluster |= {"POOLBENCH_HTTP": "http://127.0.0.1:9", "POOLBENCH_TOKEN": "secret-token"}
    done = run(suite, *dry, "A2_max", **cluster)
    assert done.returncode == 0 and "tasks to do" in done.stdout, done.stderr
    wrong = run(suite, *dry, "A2_mux", **cluster)
    assert wrong.returncode == 2 and "A2_max" in wrong.stderr and "Traceback" not in wrong.stderr


PAGE = """
import sys
from pathlib import Path
from poolbench_driver.results import result_table
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records.folder import create_run, write_failures, write_table
from poolbench_driver.report.making import write_report

output = Path(sys.argv[1])
folder = create_run(output, load_run_config(None, {"preset": "demo", "suite": "best_layer"}))
rows = [
    {"suite": "best_layer", "budget": "demo", "protocol": "corrected", "model": "demo", "concept": concept,
     "entrant": entrant, "metric": "best_layer.auroc", "value": value, "status": "ok", "params": "{}"}
    for entrant, values in {"layer 2": (0.9, 0.7, 0.8), "layer 1": (0.6, 0.6, 0.6)}.items()
    for concept, value in zip("abc", values)
]
write_table(folder, "results", result_table(rows))
write_failures(folder, [])
write_report(folder)
leaderboard(["latest"], output, power=True)
"""


def test_a_suite_without_a_page_says_whether_its_data_tell_the_first_two_apart(suite: Path, tmp_path: Path) -> None:
    """By hand: differences of .3, .1 and .2 have a standard deviation of .1, so that the effect of .02 is .2.

    statsmodels 0.15 solves 198.15 pairs for it (`driver/tests/test_statistics_planning.py`).
    """
    done = run(suite, "-c", PAGE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    sentence = (
        "3 concepts are too few to find a difference of 0.02 in best_layer.auroc between the first two (layer 2 and "
        "layer 1; a paired t-test has a power of .04): 199 would be enough."
    )
    assert done.stdout.startswith(sentence) and "| layer 2 | layer 1 | 3 | +0.2 |" in done.stdout
    view = json.loads((tmp_path / "latest" / "report" / "view.json").read_text())
    assert view["answer"]["sentences"] == [sentence]
    assert sentence in (tmp_path / "latest" / "report" / "index.html").read_text()


def test_the_page_shows_the_example() -> None:
    page = (EXAMPLES.parent / "extending.md").read_text("utf-8")
    files = ("pyproject.toml", "src/poolbench_best_layer/suite.py", "src/poolbench_best_layer/__init__.py")
    whole = [(EXAMPLES / "best-layer" / file).read_text("utf-8") for file in files]
    for method in ("plan", "report"):
        (excerpt,) = re.findall(rf"```python\n(?:from [^`]*?\n\n\n)?(def {method}.*?)```", page, re.DOTALL)
        assert textwrap.indent(excerpt.replace("\n\n\n", "\n\n"), "    ") in whole[1]
    assert whole[0].partition("[project.entry-points")[2].partition("[tool")[0].strip() in page
    (metadata,) = re.findall(r"```python\n(SUITE = .*?)```", page, re.DOTALL)
    assert metadata in whole[2]
    assert sum(len(text.splitlines()) for text in whole[1:]) <= 150
