"""What the plug-in reads of vLLM and does in its model runner."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poolbench_steerer.plugin.internals import (
    INTERNALS,
    KNOWN_METHODS,
    check_internals,
    check_vllm_version,
    method_digests,
    missing_internals,
    refuse_unsupported,
)
from poolbench_steerer.plugin.runner import clear_blocks, new_blocks, prepare_clearing

SOURCE = """
class GPUModelRunner:
    def __init__(self):
        self.input_batch = self.query_start_loc = self.device = self.kv_caches = None
        self.discard_request_mask = None

    def get_model(self): ...

    def _init_kv_zero_meta(self): ...

    def _zero_block_ids(self, block_ids): ...

    def _update_states(self, scheduler_output):
        self._zero_block_ids([])

    def _model_forward(self, input_ids, positions): ...

    def _sample(self): ...

    def _bookkeeping_sync(self): ...

    def execute_model(self, scheduler_output):
        return self._model_forward(None, None)
"""


FILE = "v1/worker/gpu_model_runner.py"


def installed() -> Path:
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def test_the_installed_vllm_has_everything_for_both_model_runners():
    assert list(missing_internals(installed())) == []
    check_internals()
    found = method_digests(installed())
    assert set(found) == set(KNOWN_METHODS)
    assert all(digest in KNOWN_METHODS[name] for name, digest in found.items())


def runner_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> list[str]:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text(source)
    only = tuple(each for each in INTERNALS if each.file == FILE)
    monkeypatch.setattr("poolbench_steerer.plugin.internals.INTERNALS", only)
    return list(missing_internals(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("self._model_forward(None", "self.run_forward(None", "execute_model does not call _model_forward"),
        ("positions): ...", "where): ...", "_model_forward takes no positions"),
        ("self.query_start_loc = ", "", "has no query_start_loc"),
        ("class GPUModelRunner", "class Runner", "v1/worker/gpu_model_runner.py has no GPUModelRunner"),
        ("def get_model", "def model_of", "has no get_model"),
        ("self._zero_block_ids([])", "pass", "_update_states does not call _zero_block_ids"),
    ],
)
def test_whatever_a_release_renames_is_named(monkeypatch, tmp_path, old, new, problem):
    (found,) = runner_only(monkeypatch, tmp_path, SOURCE.replace(old, new))
    assert problem in found


def test_a_runner_as_it_should_be_has_nothing_missing(monkeypatch, tmp_path):
    assert runner_only(monkeypatch, tmp_path, SOURCE) == []


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed vLLM's files that the plug-in relies on."""
    for file in {internal.file for internal in INTERNALS}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed() / file, tmp_path / file)
    return tmp_path


def test_releases_whose_methods_are_known_are_supported(tmp_path: Path, package: Path):
    for version in ("0.32.0+cpu", "0.32.0", "0.25.0", "0.25.1"):
        check_vllm_version(version, tmp_path)
    file = package / FILE
    file.write_text(file.read_text("utf-8").replace("def _model_forward(", "# a comment\n\n    def _model_forward("))
    check_vllm_version("0.33.0", package)


@pytest.mark.parametrize(
    "change", [("def _zero_block_ids(", "def _clear_blocks("), ("_zero_block_ids(", "_clear_ids(")]
)
def test_a_release_whose_methods_differ_is_refused_by_their_names(package: Path, change: tuple[str, str]):
    file = package / FILE
    file.write_text(file.read_text("utf-8").replace(*change))
    with pytest.raises(RuntimeError, match=r"0\.34\.0\+cpu is not supported.*_zero_block_ids in v1.* 0\.32\.0"):
        check_vllm_version("0.34.0+cpu", package)


def config(**changes: object) -> SimpleNamespace:
    values = {"speculative": None, "pipeline": 1, "ubatching": False, "sequence": False} | changes
    return SimpleNamespace(
        speculative_config=values["speculative"],
        parallel_config=SimpleNamespace(pipeline_parallel_size=values["pipeline"], use_ubatching=values["ubatching"]),
        compilation_config=SimpleNamespace(pass_config=SimpleNamespace(enable_sp=values["sequence"])),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculative": object()}, "speculative decoding"),
        ({"pipeline": 2}, "pipeline parallelism"),
        ({"ubatching": True}, "micro-batches"),
        ({"sequence": True}, "sequence parallelism"),
    ],
)
def test_what_steering_cannot_follow_is_refused_before_loading(change, message):
    refuse_unsupported(config())
    with pytest.raises(RuntimeError, match=f"does not support {message}"):
        refuse_unsupported(config(**change))


#: Two groups of layers with blocks of 4 and 8 tokens, and one whose blocks hold no keys and values.
SIZES = [4, 8, None]


def scheduled(new: list[Any], running: list[tuple[str, Any, int]], resumed: set[str]) -> SimpleNamespace:
    ids, blocks, computed = (list(column) for column in zip(*running, strict=True)) if running else ([], [], [])
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=blocks, num_computed_tokens=count) for blocks, count in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=ids, new_block_ids=blocks, num_computed_tokens=computed, resumed_req_ids=resumed
        ),
    )


def test_requests_get_the_blocks_cleared_that_they_must_compute():
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 0)], [], set()), SIZES)) == [1, 2, 3, 4, 5]
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 8)], [], set()), SIZES)) == [3, 5]
    running = [("a", ([7], [], []), 12), ("b", None, 3), ("c", ([1, 2, 3], [4, 5], [6]), 8)]
    assert sorted(new_blocks(scheduled([], running, {"c"}), SIZES)) == [3, 5, 7]


def test_clearing_touches_these_blocks_of_every_layer_only():
    caches = [torch.full((12, 2, 3), float("nan")), torch.full((6, 5), float("inf")), ["not a tensor"]]
    clear_blocks(caches, num_blocks=6, block_ids=[1, 4])  # the first layer has two small blocks in each block
    assert caches[0].view(6, -1).isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]
    assert caches[1].isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]


def test_gpus_clear_with_vllms_own_kernel():
    """For most models vLLM sets it up only on request."""
    calls: list[str] = []
    runner = SimpleNamespace(_init_kv_zero_meta=lambda: calls.append("set up"), _zero_block_ids="vLLM's own")
    prepare_clearing(runner, 6, torch.device("cuda"))
    assert (calls, runner._zero_block_ids) == (["set up"], "vLLM's own")
