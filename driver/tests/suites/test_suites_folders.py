"""A suite is one folder: nothing else of the program names it, except what makes its results or imports its data."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (("humanoid", "Humanoid"), ("driver/src/poolbench_driver/suites/humanoid/", "services/prober/")),
        (
            ("ce_bench", "ce-bench", "CeBench"),
            ("driver/src/poolbench_driver/suites/ce_bench/", "driver/src/poolbench_driver/cli/importing.py"),
        ),
    ],
    ids=("humanoid", "ce-bench"),
)
def test_no_other_part_of_the_program_knows_the_suite(names: tuple[str, ...], own: tuple[str, ...]) -> None:
    patterns = ("*/src/**/*", "services/*/src/**/*", "deploy/**/*")
    sources = (path for pattern in patterns for path in REPOSITORY.glob(pattern) if path.is_file())
    texts = {path: path.read_text("utf-8") for path in sources if path.suffix in (".py", ".j2", ".yaml", ".toml")}
    named = [str(path.relative_to(REPOSITORY)) for path, text in texts.items() if any(name in text for name in names)]
    assert [path for path in named if not path.startswith(own)] == []
