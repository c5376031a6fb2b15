"""A small fuzz of fixed seed, as `make fuzz` does it at length; and the defects that the fuzz must see."""

from pathlib import Path

import pytest
from tests.trials.fuzz import watch
from tests.trials.fuzz.__main__ import MODULES
from tests.trials.fuzz.broken_targets import TARGETS as BROKEN
from tests.trials.fuzz.watch import run
from tests.trials.fuzz.worker import load_targets


@pytest.mark.lane(name="hostile")
def test_no_reader_gives_way_to_mutated_messages_and_files(tmp_path: Path) -> None:
    targets = load_targets(MODULES)
    cases = [(target, number) for target in range(len(targets)) for number in range(300)]
    found = [(targets[each.target].name, each.number, each.found) for each in run(MODULES, cases, 20, tmp_path)]
    assert len(targets) == 12 and found == []


@pytest.mark.lane(name="hostile")
def test_the_fuzz_sees_every_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CASE_CPU_S", 0.5)
    cases = [(target, number) for target in range(len(BROKEN)) for number in range(2)]
    findings = run(["tests.trials.fuzz.broken_targets"], cases, 1, tmp_path)
    found: dict[str, set[str]] = {}
    for each in findings:
        found.setdefault(BROKEN[each.target].name, set()).add(each.found)
    expected = {
        "crash": "SIGSEGV",
        "compute": "still computes",
        "write elsewhere": "outside/written",
        "read elsewhere": "content of a file of another folder",
        "unpickle": "pickle.find_class",
        "leak": "the value of POOLBENCH_TOKEN",
        "raise": "RecursionError",
        "allocate": "MemoryError",
    }
    assert found.keys() == expected.keys()
    assert all(any(said in one for one in found[name]) for name, said in expected.items()), found
    assert {(each.target, each.number) for each in findings} >= {(0, 0), (0, 1), (1, 0), (1, 1)}
