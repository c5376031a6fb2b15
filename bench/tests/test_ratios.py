"""Every benchmark runs at its smallest size, writes the ratios of `bench/ratios.py`, and has a test."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.ratios import RATIOS, verdict
from bench.tests.benches import BENCH, SHARED, script, smallest
from tests.pages import REPOSITORY, tracked
from tests.servers import redis as redis_server

pytestmark = pytest.mark.lane(name="benches")

#: Benchmarks that are started here.
STARTED = {
    *("ce", "corpus", "extract", "find", "gpu_extract", "gpu_probe", "gpu_steer", "holmes", "limits"),
    *("pilots", "probe", "queue", "scale", "scale_check", "steer"),
}
ON_REDIS = {"queue", "scale_check"}
#: Benchmarks that a test elsewhere starts, on servers that it has anyway.
ELSEWHERE = {
    "adhoc": "tests/system/clusters/test_end_to_end.py",
    "console": "tests/system/clusters/test_end_to_end.py",
    "idle": "tests/system/clusters/test_end_to_end.py",
    "served_steer": "tests/system/clusters/test_end_to_end.py",
    "store": "bench/tests/test_store.py",
}
GPU = sorted(name for name in STARTED if name.startswith("gpu_"))
NOT_IN_BENCH = {"adhoc", "scale_check", "served_steer", *GPU}  # in none of the runs of `make bench`


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=redis_server.NEEDED if name in ON_REDIS else ()) for name in sorted(STARTED)]
)
def test_a_benchmark_writes_its_ratios(name: str, tmp_path: Path) -> None:
    report = smallest(name, tmp_path, *(("--device", "cpu") if name in GPU else ()))
    globals().get(f"check_{name}", lambda _: None)(report)


def check_ce(report: dict[str, Any]) -> None:
    assert report["ratios"]["ce.largest_difference"] < 1e-3 and report["ratios"]["ce.forwards"] == 1


def check_extract(report: dict[str, Any]) -> None:
    assert report["figures"]["random"]["gradient"]["added"] == ["S2_gradient"]
    assert report["figures"]["annotation"]["words_per_cpu_s"] > 0


def check_gpu_probe(report: dict[str, Any]) -> None:
    assert report["figures"]["against_numpy"]["auroc"] < 1e-3


def check_queue(report: dict[str, Any]) -> None:
    for broker in ("folder", "redis"):
        found = report["figures"][broker]
        assert found["driver"]["2"]["share_of_a_core"] > 0 and found["backlog"]["tasks_per_s"] > 0
        assert 0 < found["start"]["p50_ms"] <= found["start"]["p95_ms"] <= found["start"]["max_ms"]


def check_scale(report: dict[str, Any]) -> None:
    assert 0 < report["ratios"]["scale.efficiency_64"] <= report["ratios"]["scale.bound_64"] <= 1
    assert report["figures"]["loop"]["driver"]["rounds"] > 1


def check_scale_check(report: dict[str, Any]) -> None:
    real, simulated = report["figures"]["real"], report["figures"]["simulated"]
    assert real["failures"] == 0 and not simulated["executed_twice"]
    assert real["artifacts"] >= simulated["tasks"] > 0
    assert report["ratios"]["scale_check.simulated_vs_real"] == simulated["elapsed_s"] / real["elapsed_s"]


def check_steer(report: dict[str, Any]) -> None:
    assert set(report["figures"]["scoring"]["against_one"]) == {"k3", "k8", "k17"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", GPU)
def test_a_gpu_benchmark_refuses_a_machine_without_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--smallest"])
    with pytest.raises(SystemExit, match=r"^PyTorch finds no GPU here: .*--device cpu$"):
        importlib.import_module(name).main()


def test_every_benchmark_has_ratios_and_a_test() -> None:
    scripts = {file for file in tracked(":(glob)bench/*.py") if file.stem not in SHARED}
    assert {script(name) for name in RATIOS} == scripts, "bench/ratios.py lists the ratios of every benchmark"
    assert STARTED | ELSEWHERE.keys() == RATIOS.keys(), "STARTED or ELSEWHERE names a test of every benchmark"
    for name, file in ELSEWHERE.items():
        assert f'smallest("{name}"' in (REPOSITORY / file).read_text(), f"{file} does not start {name}"


def test_make_bench_runs_all_but_a_few() -> None:
    shown = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    found = re.search(r"make bench-<name> .*: (.*)", shown)
    assert found and {BENCH / f"{name}.py" for name in found[1].split()} == {
        script(name) for name in RATIOS.keys() - NOT_IN_BENCH
    }


def test_the_page_has_the_targets_of_the_table() -> None:
    targets = {ratio: target for ratios in RATIOS.values() for ratio, target in ratios.items()}
    rows = re.findall(r"^\| (`.*) \|.*\| ([<>]=? [\d.]+) \|$", (BENCH / "README.md").read_text("utf-8"), re.MULTILINE)
    named = {ratio: target for cell, target in rows for ratio in re.findall(r"`(\S+)`", cell) if ratio in targets}
    assert named and named == {ratio: targets[ratio] for ratio in named}


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(1.0, "<= 1.10", "held"), (1.2, "<= 1.10", "missed"), (5, ">= 5", "held"), (None, ">= 5", ""), (1.0, "", "")],
)
def test_a_ratio_is_compared_with_its_target(value: float | None, target: str, expected: str) -> None:
    assert verdict(value, target) == expected
