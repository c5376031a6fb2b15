"""What a client imports: little, and of optional packages only what the command at hand needs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from poolbench_driver import cli

HELP = {"torch", "ray", "vllm", "transformers", "spacy", "sklearn", "scipy"}
#: What a suite does is loaded for a run alone.
SUITES = {f"poolbench_driver.suites.{name}.suite" for name in ("holmes", "poolbench")}
HEAVY = HELP | {"pyarrow", "vl_convert", "redis", "numpy", "httpx"}
#: Packages that only an extra installs, and modules of ours that every client can import without them.
WITHOUT_EXTRAS = (
    *("poolbench_driver.cluster.session", "poolbench_driver.cluster.dead_letters", "poolbench_driver.doctor"),
    *("poolbench_driver.records", "poolbench_driver.queries.embedding", "poolbench_driver.comparison"),
    *("poolbench_driver.series", "poolbench_driver.imports.scorers", "poolbench_corpora.own"),
    "poolbench_corpora.stories",
)
#: Packages that are not named as their module.
PACKAGES = {"sklearn": "scikit-learn", "vl_convert": "vl-convert-python"}
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def run(code: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.strip()


#: What a client does, in the order in which a process of a test does it, and what must not be loaded then.
STEPS = {
    "import poolbench_driver": HEAVY,
    "import poolbench_driver.cli": HEAVY,
    "command('ls', 'strategies', '--json')": {"scipy", "torch", "pyarrow", "redis", "ray", "vl_convert", "httpx"},
    "command('vectors', 'ls')": {"scipy", "torch", "pyarrow", "transformers", "ray", "gguf", "httpx"},
    "command('ls', 'suites')": HELP | SUITES,
    "command('run', '-h')": HELP | SUITES,
    "command('run', '--suite', 'holmes', '-h')": HELP | SUITES,
    "command('run', '--suite', 'poolbench', '-h')": HELP | SUITES,
    "command('steer', '-h')": HELP,
}
COMMAND = """
import json, sys
def command(*arguments):
    sys.argv = ["poolbench-driver", *arguments]
    try:
        poolbench_driver.cli.main()
    except SystemExit as ended:
        assert not ended.code, arguments
"""


def test_what_a_client_does_loads_nothing_heavy(tmp_path: Path) -> None:
    code = COMMAND + "".join(f"{step}\nprint('loaded', json.dumps(sorted(sys.modules)))\n" for step in STEPS)
    shown = run(code, cwd=tmp_path)
    loaded = [json.loads(line.partition(" ")[2]) for line in shown.splitlines() if line.startswith("loaded ")]
    assert {step: heavy & set(names) for (step, heavy), names in zip(STEPS.items(), loaded, strict=True)} == {
        step: set() for step in STEPS
    }
    assert '"A1_mean"' in shown


def test_modules_of_a_client_load_nothing_of_an_extra() -> None:
    code = "import sys\n" + "".join(f"import {module}\n" for module in WITHOUT_EXTRAS)
    assert run(f"{code}print(sorted({set(cli.EXTRAS)} & set(sys.modules)))") == "[]"


def test_a_package_that_is_absent_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'redis.exceptions'", name="redis.exceptions")

    monkeypatch.setattr(cli, "command_line", lambda name: absent)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = "error: this needs redis, which is not installed here: pip install 'poolbench-driver[queue]'\n"
    assert capsys.readouterr().err == said


def test_extras_are_those_of_the_packages() -> None:
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(cli.EXTRAS.values()) == set(extras)
    files = [PROJECT, *(PROJECT.parents[1] / name / "pyproject.toml" for name in ("shared", "corpus"))]
    listed = {
        (extra, re.split(r"[\[=]", line)[0])
        for file in files
        for extra, lines in tomllib.loads(file.read_text("utf-8"))["project"]["optional-dependencies"].items()
        for line in lines
    }
    for module, extra in cli.EXTRAS.items():
        name = PACKAGES.get(module, module.replace("_", "-"))
        assert (extra, name) in listed, f"{module} is not in the extra {extra}"
