"""A suite is one folder. Of the rest of the program, only the help of commands that are made for it names it."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = "driver/src/poolbench_driver/"
SUITES = f"{DRIVER}suites/"


def named_in(pattern: str) -> list[str]:
    """Return the files of the program that match a pattern."""
    sources = ("*/src/**/*", "services/*/src/**/*", "deploy/**/*")
    files = (path for source in sources for path in REPOSITORY.glob(source) if path.is_file())
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in (".py", ".j2", ".yaml", ".toml")}
    return [str(path.relative_to(REPOSITORY)) for path, text in texts.items() if re.search(pattern, text)]


@pytest.mark.parametrize(
    ("names", "places"),
    [
        ("humanoid|Humanoid", (f"{SUITES}humanoid/", "services/prober/", f"{DRIVER}cli/persona.py")),
        ("ce_bench|ce-bench|CeBench", (f"{SUITES}ce_bench/", f"{DRIVER}cli/importing.py")),
        (r"suites\.holmes|suites/holmes|Holmes(Config|Plan|Scope)", (f"{SUITES}holmes/",)),
        (r"suites\.planted|suites/planted", (f"{SUITES}planted/",)),
        # The package has the suite's name too; `planted` takes its board and its rows.
        (r"suites\.poolbench|suites/poolbench|PoolBench(Config|Plan)", (f"{SUITES}poolbench/", f"{SUITES}planted/")),
    ],
    ids=("humanoid", "ce-bench", "holmes", "planted", "poolbench"),
)
def test_no_other_part_of_the_program_knows_the_suite(names: str, places: tuple[str, ...]) -> None:
    files = named_in(names)
    assert any(path.startswith(places[0]) for path in files)
    assert [path for path in files if not path.startswith(places)] == []
