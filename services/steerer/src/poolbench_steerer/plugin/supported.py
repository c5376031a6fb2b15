"""Which vLLM the plug-in fits: its releases, and what of them may be turned on."""

from __future__ import annotations

from typing import Any

#: vLLM releases whose internals this plug-in knows: the pinned one, and those that pair with torch 2.11.
SUPPORTED_VLLM = ("0.32.0", "0.25.0", "0.25.1")


def check_vllm_version(version: str) -> None:
    """Refuses a vLLM whose internals are unknown here.

    Raises:
        RuntimeError: Naming the version found and those supported.
    """
    release = version.partition("+")[0]
    if release not in SUPPORTED_VLLM:
        raise RuntimeError(
            f"vLLM {version} is not supported by the steering plug-in, which relies on its internals; "
            f"install one of {', '.join(SUPPORTED_VLLM)}"
        )


def refuse_unsupported(config: Any) -> None:
    """Raises RuntimeError for what vLLM can do but steering cannot follow."""
    parallel = config.parallel_config
    passes = getattr(config.compilation_config, "pass_config", None)
    reasons = {
        "speculative decoding (rejected positions would count)": config.speculative_config is not None,
        "pipeline parallelism (a worker holds only some of the blocks)": parallel.pipeline_parallel_size > 1,
        "micro-batches (tokens of a batch run apart)": bool(parallel.use_ubatching),
        "sequence parallelism (a worker holds only some of the tokens)": bool(getattr(passes, "enable_sp", False)),
    }
    refused = [reason for reason, found in reasons.items() if found]
    if refused:
        raise RuntimeError(f"steering does not support {'; '.join(refused)}; turn it off")
