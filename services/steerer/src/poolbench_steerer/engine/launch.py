"""Start vLLM with the steering worker: engine arguments and process environment."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.config import ModelRef
from poolbench.errors import ModelError
from poolbench.machine.gpu import SharedGpu, engine_share, shared_gpu
from poolbench.model_folders.unreadable import unreadable
from poolbench.settings import ProcessSettings, SteererSettings
from poolbench.telemetry.logs import as_json
from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.internals import check_vllm_version

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

#: Beside weights and KV cache: activations of one step, the device bank, and captured graphs.
_WORKING_BYTES = 2 * 2**30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_WORKERS = {
    "cpu": "poolbench_steerer.plugin.worker_cpu.SteeringCPUWorker",
    "cuda": "poolbench_steerer.plugin.worker_gpu.SteeringGPUWorker",
}
#: Part of vLLM's compilation cache key: graphs traced with other hooks must not be reused.
_HOOKS_VERSION = 3
_CPU_KV_CACHE_GIB = 1.0


def with_room(model: ModelRef, config: SteererSettings) -> SteererSettings:
    """Wait until a shared GPU has enough free memory. Return the settings with the share that the engine may take.

    Raises:
        GpuBusyError: Other services kept the memory for an hour.
    """
    gpu = shared_gpu("steerer")
    return config if gpu is None else fitted(model, config, gpu)


def fitted(model: ModelRef, config: SteererSettings, gpu: SharedGpu) -> SteererSettings:
    """Return the settings with the share of this GPU that is free."""
    needed = needed_bytes(model, config)
    most = config.gpu_memory_share
    share = gpu.wait_until(lambda memory: engine_share(memory, needed, gpu.claimed(), most), needed)
    return config.model_copy(update={"gpu_memory_share": share})


def needed_bytes(model: ModelRef, config: SteererSettings) -> int:
    """Return the minimum bytes that an engine needs: weights, KV cache of one window, and working memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {"revision": None if model.is_local else model.revision, "trust_remote_code": config.trust_remote_code}
    described = AutoConfig.from_pretrained(model.source, **settings)
    with torch.device("meta"):
        model_skeleton = AutoModelForCausalLM.from_config(described, trust_remote_code=config.trust_remote_code)
    per_number = _BYTES.get(model.dtype, 4)
    weights = per_number * sum(parameter.numel() for parameter in model_skeleton.parameters())
    cache = int((config.kv_cache_gib or 0) * 2**30)
    if not cache:  # the keys and values of one text as long as the window
        text: Any = described.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        window = config.max_model_len or text.max_position_embeddings
        cache = per_number * 2 * int(text.num_hidden_layers * heads * width * window)
    return (weights + cache) // config.tensor_parallel + _WORKING_BYTES


def prepare_environment(model: ModelRef, config: SteererSettings) -> None:
    """Set the environment of vLLM before vllm is imported. Variables that the user has set stay unchanged."""
    os.environ[ProcessSettings.variable("engine_owner")] = str(os.getpid())
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if as_json():
        os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(Path(__file__).with_name("json_logging.json")))
    # The engine core is a process of its own either way; on a CPU one more for the worker costs memory.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # Requests have bounds of their own; vLLM takes 4.
    os.environ.setdefault("VLLM_MAX_STOP_STRINGS", "16")
    import torch

    if torch.version.cuda is not None:
        # A forked engine fails when anything in this process has touched CUDA before.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if config.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.num_threads)
    if model.is_local:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def import_vllm(model: ModelRef, config: SteererSettings) -> type[Exception]:
    """Prepare the environment and import vllm. Return the error class that dead engines raise."""
    prepare_environment(model, config)
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401
    from vllm.v1.engine.exceptions import EngineDeadError

    return EngineDeadError


def launch(model: ModelRef, config: SteererSettings) -> "AsyncLLM":
    """Start an engine on the current event loop, which takes minutes. Raise ModelError if vLLM refuses the model."""
    require_weights(model, config)
    prepare_environment(model, config)
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        check_vllm_version(vllm.__version__)
        device_type = device(config)
        require_hooked_runner(device_type)
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(model, config, device_type)))
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelError(f"the engine cannot start with model {model.id!r} ({model.source}): {error}") from error


def require_weights(model: ModelRef, config: SteererSettings) -> None:
    """Raise ModelError for a folder whose checkpoint lacks weights of its model, or names them otherwise.

    vLLM notices parameters of which nothing was loaded. Where it joins several weights to one parameter, such as those
    of queries, keys and values, one that is missing would be whatever the memory held. Names are compared here, and no
    weight is read. Quantised checkpoints have names that only vLLM knows, and are not read in float32.
    """
    if not model.is_local:
        return
    from transformers import AutoConfig, AutoModelForCausalLM

    kind: Any = AutoModelForCausalLM
    trust = {"trust_remote_code": config.trust_remote_code}
    try:
        settings = AutoConfig.from_pretrained(model.source, **trust)
        if getattr(settings, "quantization_config", None) is not None:
            require_half_precision(model)
            return
        _, report = kind.from_pretrained(
            model.source, config=settings, device_map="meta", output_loading_info=True, **trust
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        variable = SteererSettings.variable("trust_remote_code")
        raise unreadable(f"model {model.source}", model, error, variable) from error
    if missing := sorted(report["missing_keys"]):
        others = sorted(report["unexpected_keys"])[:1]
        instead = f" and has others that the model does not have, such as {others[0]}" if others else ""
        raise ModelError(
            f"checkpoint {model.source} lacks weights, such as {missing[0]}{instead}; save the whole model with "
            "save_pretrained, under its own names"
        )


def require_half_precision(model: ModelRef) -> None:
    """Raise ModelError for quantised weights in float32, of which some forms would end the engine at its first step."""
    if model.dtype == "float32":
        raise ModelError(
            f"the weights of {model.source} are quantised, and engines compute with such weights in bfloat16 or "
            "float16: ask for one of the two"
        )


def device(config: SteererSettings) -> str:
    """Return `cpu` or `cuda`, as configured or by vLLM's platform."""
    from vllm.platforms import current_platform

    platform = "cpu" if current_platform.is_cpu() else "cuda"
    if config.device not in ("auto", platform):
        raise ModelError(f"the steerer is configured for {config.device}, but this vLLM runs on {platform}")
    return platform


def require_hooked_runner(device_type: str) -> None:
    """Make vLLM use a model runner that the hooks support.

    On CPUs, the hooks that clear cache blocks and keep random generators work only in the first model runner of vLLM.
    A CPU build with Triton would choose the second runner. vLLM reads the setting when it creates the configuration of
    the engine, in this process and in that of the engine.
    """
    if device_type == "cpu":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"


def steering_arguments(config: SteererSettings, device_type: str) -> dict[str, Any]:
    """Return the engine arguments of vLLM that steering needs, regardless of other arguments."""
    return {
        "worker_cls": _WORKERS[device_type],
        "additional_config": {
            WIRE_KEY: {
                "hooks_version": _HOOKS_VERSION,
                "num_slots": config.bank_slots,
                "num_rows": config.max_steered_requests + 1,
                "num_edits": config.max_edits_per_layer,
            }
        },
    }


def engine_arguments(model: ModelRef, config: SteererSettings, device_type: str) -> dict[str, Any]:
    """Return the arguments of vLLM's engine."""
    on_cpu = device_type == "cpu"
    arguments: dict[str, Any] = {
        "model": model.source,
        "revision": None if model.is_local else model.revision,
        "dtype": model.dtype,
        "enforce_eager": on_cpu if config.enforce_eager is None else config.enforce_eager,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "enable_prefix_caching": config.prefix_caching,
        "tensor_parallel_size": config.tensor_parallel,
        "trust_remote_code": config.trust_remote_code,
        "disable_log_stats": True,
        **steering_arguments(config, device_type),
    }
    if on_cpu:
        arguments["block_size"] = config.block_size
    else:
        arguments["gpu_memory_utilization"] = config.gpu_memory_share
    cache_gib = _CPU_KV_CACHE_GIB if on_cpu and config.kv_cache_gib is None else config.kv_cache_gib
    if cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gib * 2**30)
    return arguments
