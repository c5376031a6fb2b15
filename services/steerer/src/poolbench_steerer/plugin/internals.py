"""The supported vLLM releases, and the internals of vLLM that the plug-in uses, checked against its source.

A release that renamed one of them would steer wrong tokens, or none, without an error of its own. The check
reads vLLM's files and imports nothing, so that a CPU machine can check what only GPUs run.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Internal:
    """A class or function of vLLM, and the parts that the plug-in uses.

    Attributes:
        file: Path relative to the package.
        name: Name of the class or function.
        members: Names that must exist: attributes and methods of a class, or parameters of a function.
        signatures: Parameters that a method must have, by method.
        calls: Functions that a method must call, by method. Otherwise hooking the called function has no effect.
    """

    file: str
    name: str
    members: tuple[str, ...] = ()
    signatures: tuple[tuple[str, tuple[str, ...]], ...] = ()
    calls: tuple[tuple[str, str], ...] = ()


INTERNALS = (
    Internal(
        "v1/worker/gpu_worker.py",
        "Worker",
        ("model_runner", "use_v2_model_runner"),
        (
            ("load_model", ("load_dummy_weights",)),
            ("initialize_from_config", ("kv_cache_config",)),
            ("execute_model", ("scheduler_output",)),
            ("execute_dummy_batch", ()),
        ),
    ),
    Internal("v1/worker/worker_base.py", "WorkerBase", ("vllm_config", "model_runner")),
    Internal("v1/worker/cpu_worker.py", "CPUWorker"),
    # The first model runner keeps one persistent batch.
    Internal(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner",
        (
            *("input_batch", "query_start_loc", "device", "get_model", "kv_caches", "_init_kv_zero_meta"),
            "discard_request_mask",
        ),
        (
            ("_model_forward", ("input_ids", "positions")),
            ("_zero_block_ids", ("block_ids",)),
            ("_sample", ()),
            ("_bookkeeping_sync", ()),
        ),
        (("execute_model", "_model_forward"), ("_update_states", "_zero_block_ids")),
    ),
    Internal(
        "v1/worker/gpu_input_batch.py", "InputBatch", ("req_ids", "num_reqs", "num_computed_tokens_cpu", "generators")
    ),
    Internal("v1/utils.py", "CpuGpuBuffer", ("np",)),
    # The second builds one batch per step.
    Internal(
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner",
        ("device", "get_model", "_init_kv_zero_meta", "kv_block_zeroer"),
        (("prepare_inputs", ("scheduler_output",)),),
        (("execute_model", "prepare_inputs"), ("update_requests", "zero_block_ids")),
    ),
    Internal("v1/worker/gpu/input_batch.py", "InputBatch", ("req_ids", "query_start_loc_np", "num_computed_tokens_np")),
    Internal(
        "v1/core/sched/output.py",
        "SchedulerOutput",
        ("finished_req_ids", "scheduled_new_reqs", "scheduled_cached_reqs", "new_block_ids_to_zero"),
    ),
    Internal(
        "v1/core/sched/output.py", "NewRequestData", ("req_id", "sampling_params", "block_ids", "num_computed_tokens")
    ),
    Internal(
        "v1/core/sched/output.py",
        "CachedRequestData",
        ("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens"),
    ),
    Internal("v1/kv_cache_interface.py", "KVCacheConfig", ("num_blocks", "kv_cache_groups")),
    Internal("v1/kv_cache_interface.py", "KVCacheSpec", ("block_size",)),
    Internal("v1/kv_cache_interface.py", "MambaSpec"),
    Internal("sampling_params.py", "SamplingParams", ("extra_args", "skip_reading_prefix_cache", "prompt_logprobs")),
    Internal("inputs/engine.py", "tokens_input", ("prompt_token_ids", "cache_salt")),
    Internal(
        "v1/engine/async_llm.py",
        "AsyncLLM",
        ("errored", "shutdown", "reset_prefix_cache", "model_config"),
        (("collective_rpc", ("method", "args")), ("generate", ("prompt", "sampling_params", "request_id"))),
    ),
    Internal("v1/engine/exceptions.py", "EngineDeadError"),
    Internal(
        "engine/arg_utils.py",
        "EngineArgs",
        ("worker_cls", "additional_config", "kv_cache_memory_bytes", "enable_prefix_caching"),
    ),
    Internal("config/parallel.py", "ParallelConfig", ("pipeline_parallel_size", "use_ubatching")),
    Internal("config/compilation.py", "CompilationConfig", ("max_cudagraph_capture_size",)),
)


def check_internals() -> None:
    """Raise RuntimeError if the installed vLLM lacks an internal that the plug-in relies on."""
    missing = list(missing_internals(_installed()))
    if missing:
        raise RuntimeError(f"this vLLM lacks what the steering plug-in relies on: {'; '.join(missing)}")


def _installed() -> Path:
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def missing_internals(package: Path) -> Iterator[str]:
    """Yield a description of each internal that the vLLM in folder `package` lacks."""
    for internal in INTERNALS:
        definition = _definition(package / internal.file, internal.name)
        if definition is None:
            yield f"{internal.file} has no {internal.name}"
        elif isinstance(definition, ast.ClassDef):
            yield from _missing_in_class(definition, internal)
        else:
            absent = sorted(set(internal.members) - _parameters(definition))
            yield from (f"{internal.name} in {internal.file} takes no {name}" for name in absent)


def _missing_in_class(definition: ast.ClassDef, internal: Internal) -> Iterator[str]:
    where = f"{internal.name} in {internal.file}"
    names = set(_member_names(definition))
    methods = {
        member.name: member for member in definition.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    yield from (f"{where} has no {name}" for name in internal.members if name not in names)
    for method, parameters in internal.signatures:
        if method not in methods:
            yield f"{where} has no method {method}"
        else:
            absent = sorted(set(parameters) - _parameters(methods[method]))
            yield from (f"{where}: {method} takes no {name}" for name in absent)
    for caller, callee in internal.calls:
        if caller not in methods or callee not in _called(methods[caller]):
            yield f"{where}: {caller} does not call {callee}"


@cache
def _parsed(file: Path) -> ast.Module | None:
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def _definition(file: Path, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    module = _parsed(file)
    for node in module.body if module else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    return None


def _member_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield fields and methods in the class body, and what its methods assign to `self`."""
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child.name
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield child.attr


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = node.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _called(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    calls = (child.func for child in ast.walk(node) if isinstance(child, ast.Call))
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}


#: vLLM releases that steering ran with: the pinned one, and those that pair with torch 2.11.
TRIED_VLLM = ("0.32.0", "0.25.0", "0.25.1")
#: Digests of the methods that hooks replace or run inside, in 0.32.0, and in 0.33.0 where it differs. The differences
#: were read: they concern drafts, images and pipelines, which have no part in steering.
KNOWN_METHODS: dict[str, tuple[str, ...]] = {
    "Worker.load_model in v1/worker/gpu_worker.py": ("8ded4ee1f4207d9b",),
    "Worker.initialize_from_config in v1/worker/gpu_worker.py": ("ec712e62182dd782",),
    "Worker.execute_model in v1/worker/gpu_worker.py": ("50e6b6eec986c0b1",),
    "Worker.execute_dummy_batch in v1/worker/gpu_worker.py": ("9c7eff745db0144a",),
    "GPUModelRunner._zero_block_ids in v1/worker/gpu_model_runner.py": ("e04c60358529108d",),
    "GPUModelRunner._update_states in v1/worker/gpu_model_runner.py": ("5a99c7d085dcc96e",),
    "GPUModelRunner._sample in v1/worker/gpu_model_runner.py": ("5e9c214297f172dd",),
    "GPUModelRunner._bookkeeping_sync in v1/worker/gpu_model_runner.py": ("0964b12e4769d811",),
    "GPUModelRunner._model_forward in v1/worker/gpu_model_runner.py": ("9d022693317a284b",),
    "GPUModelRunner.execute_model in v1/worker/gpu_model_runner.py": ("82f5894998775061",),
    "GPUModelRunner.update_requests in v1/worker/gpu/model_runner.py": ("e74f7d01cba0d7c7",),
    "GPUModelRunner.prepare_inputs in v1/worker/gpu/model_runner.py": ("9ec870153f9f520d", "c9905a2087d55222"),
    "GPUModelRunner.execute_model in v1/worker/gpu/model_runner.py": ("3707b97b393ec98d", "5ff970bde4d87853"),
}


def check_vllm_version(version: str, package: Path | None = None) -> None:
    """Raise RuntimeError for an untested version of vLLM, unless the hooked methods equal those of a tested version.

    Args:
        version: Version of vLLM.
        package: Folder of vLLM. None stands for the installed package.
    """
    if version.partition("+")[0] in TRIED_VLLM:
        return
    digests = method_digests(package or _installed())
    if changed := [name for name, tried_digests in KNOWN_METHODS.items() if digests.get(name) not in tried_digests]:
        raise RuntimeError(
            f"vLLM {version} is not supported by the steering plug-in: methods that it hooks into differ from those "
            f"that it was tried with ({', '.join(changed)}); install one of {', '.join(TRIED_VLLM)}"
        )


def method_digests(package: Path) -> dict[str, str]:
    """Return a digest of each method that hooks replace or run inside, of the vLLM in folder `package`.

    Indentation, empty lines and lines that are comments do not count.
    """
    digests = {}
    for internal in INTERNALS:
        definition = _definition(package / internal.file, internal.name)
        names = {name for name, _ in internal.signatures} | {name for pair in internal.calls for name in pair}
        if not internal.file.startswith("v1/worker/") or not isinstance(definition, ast.ClassDef):
            continue
        lines = (package / internal.file).read_text("utf-8").splitlines()
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and method.name in names:
                code = [line.strip() for line in lines[method.lineno - 1 : method.end_lineno]]
                code = [line for line in code if line and not line.startswith("#")]
                name = f"{internal.name}.{method.name} in {internal.file}"
                digests[name] = sha256("\n".join(code).encode()).hexdigest()[:16]
    return digests


def refuse_unsupported(config: Any) -> None:
    """Raise RuntimeError for features of vLLM that steering does not support."""
    parallel = config.parallel_config
    passes = getattr(config.compilation_config, "pass_config", None)
    reasons = {
        "speculative decoding (rejected positions would count)": config.speculative_config is not None,
        "pipeline parallelism (a worker holds only some of the blocks)": parallel.pipeline_parallel_size > 1,
        "micro-batches (tokens of a batch run apart)": bool(parallel.use_ubatching),
        "sequence parallelism (a worker holds only some of the tokens)": bool(getattr(passes, "enable_sp", False)),
    }
    refused = [reason for reason, in_use in reasons.items() if in_use]
    if refused:
        raise RuntimeError(f"steering does not support {'; '.join(refused)}; turn it off")
