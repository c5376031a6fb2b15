"""What the plug-in reads of vLLM is there, by name and signature, in the release that is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from poolbench_steerer.plugin.internals import INTERNALS, check_internals, missing_internals, refuse_unsupported

SOURCE = """
class GPUModelRunner:
    def __init__(self):
        self.input_batch = self.query_start_loc = self.device = self.kv_caches = None

    def get_model(self): ...

    def _init_kv_zero_meta(self): ...

    def _zero_block_ids(self, block_ids): ...

    def _update_states(self, scheduler_output):
        self._zero_block_ids([])

    def _model_forward(self, input_ids, positions): ...

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
