"""A suite is one folder. Of the rest of the program, only commands of its own and what they call name it."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = "driver/src/poolbench_driver/"
SUITES = f"{DRIVER}suites/"

#: Commands about runs of PoolBench, the comparison with its published table, the search, which is made of such runs,
#: and what is released of their concepts.
OF_POOLBENCH = (
    "cli/export.py",
    "cli/find.py",
    "cli/reproduce.py",
    "cli/runs.py",
    "comparison/published.py",
    "find/",
    "release/",
    "vectors/probes.py",
)


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
        # The package has the suite's name too; `planted` is a subclass of the suite.
        (
            r"suites\.poolbench|suites/poolbench|ConceptsPlan",
            (f"{SUITES}poolbench/", f"{SUITES}planted/", *(f"{DRIVER}{place}" for place in OF_POOLBENCH)),
        ),
    ],
    ids=("humanoid", "ce-bench", "holmes", "planted", "poolbench"),
)
def test_no_other_part_of_the_program_knows_the_suite(names: str, places: tuple[str, ...]) -> None:
    files = named_in(names)
    assert any(path.startswith(places[0]) for path in files)
    assert [path for path in files if not path.startswith(places)] == []
