"""What the plug-in reads of vLLM, and what the worker does beside steering."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.waiting import PATIENCE_S

from poolbench.errors import ReceiptError
from poolbench.settings import ProcessSettings
from poolbench_steerer.engine.rows import agreed
from poolbench_steerer.plugin.internals import (
    INTERNALS,
    KNOWN_METHODS,
    check_internals,
    check_vllm_version,
    method_digests,
    missing_internals,
    refuse_unsupported,
)
from poolbench_steerer.plugin.runner import adds_second, final_norm, fuses

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


def test_the_methods_of_the_installed_vllm_are_known():
    found = method_digests(installed())
    assert set(found) == set(KNOWN_METHODS)
    assert all(digest in KNOWN_METHODS[name] for name, digest in found.items())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed vLLM's files that the plug-in relies on."""
    for file in {internal.file for internal in INTERNALS}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed() / file, tmp_path / file)
    return tmp_path


def test_releases_that_steering_ran_with_are_supported(tmp_path: Path):
    for version in ("0.32.0+cpu", "0.32.0", "0.25.0", "0.25.1"):
        check_vllm_version(version, tmp_path)


def test_another_release_is_supported_where_its_methods_are_known(package: Path):
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


WATCHING = """
import time
from poolbench_steerer.plugin.worker import end_with_owner
end_with_owner(interval_s=0.1)
print("watching", flush=True)
time.sleep(600)
"""


def start(owner_id: int) -> subprocess.Popen[str]:
    environment = {**os.environ, ProcessSettings.variable("engine_owner"): str(owner_id)}
    return subprocess.Popen([sys.executable, "-c", WATCHING], env=environment, stdout=subprocess.PIPE, text=True)


def test_an_engine_process_ends_when_its_owner_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    engine = start(owner.pid)
    assert engine.stdout is not None and engine.stdout.readline() == "watching\n"
    assert engine.poll() is None
    owner.kill()  # stays a zombie until it is waited for, which must be enough
    assert engine.wait(timeout=PATIENCE_S) == 1
    owner.wait()


def test_an_engine_process_whose_owner_is_gone_ends_at_once():
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    assert start(owner.pid).wait(timeout=PATIENCE_S) == 1


def test_the_final_norm_is_the_models_own_not_a_blocks():
    block = torch.nn.Module()
    block.norm = torch.nn.LayerNorm(2)
    inner = torch.nn.Module()
    inner.layers = torch.nn.ModuleList([block])
    inner.norm = torch.nn.LayerNorm(2)
    model = torch.nn.Module()
    model.model = inner
    assert final_norm(model) is inner.norm
    with pytest.raises(RuntimeError, match="no final norm"):
        final_norm(block.norm)


@pytest.mark.parametrize("second", [6, 14])
def test_tensor_parallel_workers_must_have_counted_the_same(second):
    """A worker that missed a position, or steered its share as if it were the whole, differs from the others."""

    def reply(changed: int) -> dict[str, object]:
        totals = {"repeated": 0, "skipped": 0, "stray": 0, "reached": 0}
        return {"layers": [[2, [changed, 0, 0, 0]]], **totals, "broken": []}

    assert agreed([reply(7), reply(7)]).layers[2].changed == 7
    with pytest.raises(ReceiptError, match="workers disagree"):
        agreed([reply(7), reply(second)])


#: Blocks of vLLM that add the residual themselves, and blocks that leave it to the next norm.
WHOLE = {"stablelm.py": "StablelmDecoderLayer", "commandr.py": "CohereDecoderLayer", "phimoe.py": "PhiMoEDecoderLayer",
         "exaone4.py": "Exaone4DecoderLayer"}  # fmt: skip
FUSED = {"llama.py": "LlamaDecoderLayer", "gemma2.py": "Gemma2DecoderLayer", "gemma3.py": "Gemma3DecoderLayer",
         "qwen2.py": "Qwen2DecoderLayer", "mixtral.py": "MixtralDecoderLayer"}  # fmt: skip


@pytest.mark.parametrize(("file", "block"), [*WHOLE.items(), *FUSED.items()])
def test_whether_the_pair_of_a_block_is_to_be_added_follows_from_its_code(file, block):
    spec = find_spec("vllm")
    models = Path(spec.origin).parent / "model_executor" / "models"
    source = (models / file).read_text("utf-8")
    (found,) = (each for each in ast.parse(source).body if getattr(each, "name", "") == block)
    forward = next(each for each in found.body if getattr(each, "name", "") == "forward")
    assert adds_second(ast.get_source_segment(source, forward)) is (file in WHOLE)


def test_blocks_that_return_one_tensor_or_have_no_source_are_taken_as_they_are():
    assert fuses(torch.nn.Linear(2, 2))
    namespace = {"torch": torch}
    exec("class Block(torch.nn.Module):\n  def forward(self, x, r):\n    x = x + r\n    return x, r", namespace)
    assert fuses(namespace["Block"]())
