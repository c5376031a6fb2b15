"""Deployment facts of a steerer replica. Nothing here changes a result, only speed and memory."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import Field, ValidationError

from poolbench.config import StrictModel
from poolbench.errors import ConfigError

ENV_PREFIX = "POOLBENCH_STEERER_"


class SteererConfig(StrictModel):
    """Settings of one replica; each can be set as ``POOLBENCH_STEERER_<NAME>``.

    Attributes:
        device: ``auto`` takes a GPU where vLLM sees one.
        eager_start: Load ``model`` when the service starts, which is up only then, instead of at the first request.
        model: Model of requests that name none.
        enforce_eager: No compilation and no CUDA graphs; None means: eager on CPUs only.
        max_model_len: Window in tokens; None takes the model's own.
        kv_cache_gib: Memory of the KV cache. None means 1 GiB on CPUs; on GPUs, what ``gpu_memory_share`` leaves.
        gpu_memory_share: Share of the device's memory that the engine may use.
        bank_slots: Vectors that the device bank holds.
        max_edits_per_layer: Edits that one request may make at one layer.
        max_steered_requests: Requests for texts, steered or not, inside the engine at once; more wait outside of it.
        num_threads: OpenMP threads of the engine on CPUs; None leaves OMP_NUM_THREADS as it is.
        max_pending_texts: Texts that HTTP requests may be waiting for at once; more are refused with 429.
        max_upload_mib: Largest body with vectors.
        max_restarts: How often a dead engine is restarted for one call.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    eager_start: bool = False
    model: str = "demo"
    enforce_eager: bool | None = None
    max_model_len: int | None = Field(default=None, gt=1)
    max_num_seqs: int = Field(default=256, gt=0)
    max_num_batched_tokens: int = Field(default=2048, gt=0)
    block_size: int | None = 32
    kv_cache_gib: float | None = Field(default=None, gt=0)
    gpu_memory_share: float = Field(default=0.85, gt=0, le=1)
    tensor_parallel: int = Field(default=1, gt=0)
    prefix_caching: bool = True
    bank_slots: int = Field(default=4096, ge=2)
    max_edits_per_layer: int = Field(default=4, gt=0, le=16)
    max_steered_requests: int = Field(default=1024, gt=0)
    max_pending_texts: int = Field(default=4096, gt=0)
    max_upload_mib: float = Field(default=256, gt=0)
    num_threads: int | None = Field(default=None, gt=0)
    max_restarts: int = Field(default=2, ge=0)
    trust_remote_code: bool = False

    @classmethod
    def from_environment(cls) -> SteererConfig:
        """The configuration that ``POOLBENCH_STEERER_*`` describes.

        Raises:
            ConfigError: Naming each variable that is unknown or malformed.
        """
        values: dict[str, Any] = {
            name.removeprefix(ENV_PREFIX).lower(): value
            for name, value in os.environ.items()
            if name.startswith(ENV_PREFIX)
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = [f"{ENV_PREFIX}{str(issue['loc'][0]).upper()}: {issue['msg']}" for issue in error.errors()]
            raise ConfigError("; ".join(lines)) from None
