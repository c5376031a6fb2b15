"""The steering part of a vLLM worker: hooks before tracing, rows before every forward pass."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import torch
from vllm.distributed import tensor_model_parallel_all_reduce

from poolbench.settings import ProcessSettings
from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.decoder import Decoder
from poolbench_steerer.plugin.internals import check_internals, refuse_unsupported
from poolbench_steerer.plugin.operators import bind, halves, steer_output
from poolbench_steerer.plugin.receipts import counts_of
from poolbench_steerer.plugin.runner import (
    block_sizes,
    keep_generators,
    new_blocks,
    prepare_clearing,
    watch_batches,
)
from poolbench_steerer.plugin.state import Kernel, SteeringState

_NUM_WARM, _NUM_SUMS = 3, 10


class SteeringWorkerMixin:
    """Adds steering to a vLLM worker class. The engine calls the methods `steering_*` through `collective_rpc`."""

    steering: SteeringState
    vllm_config: Any
    model_runner: Any

    def load_model(self, **kwargs: Any) -> None:
        """Load the model, and hook its blocks before the model is traced or captured."""
        end_with_owner()
        config = self.vllm_config
        refuse_unsupported(config)
        check_internals()
        super().load_model(**kwargs)  # type: ignore[misc]
        device: torch.device = self.model_runner.device
        self._decoder = Decoder(self.model_runner.get_model(), config.model_config.hf_text_config)
        self.steering = _new_state(config, len(self._decoder.blocks), device)
        bind(self.steering)
        for layer, (block, fused) in enumerate(zip(self._decoder.blocks, self._decoder.fused, strict=True)):
            block.register_forward_hook(steer_output(layer, fused=fused))

        def on_batch(request_ids: Sequence[str], query_start: np.ndarray, num_computed: np.ndarray) -> None:
            self.steering.begin_batch(self.steering.rows.assign(request_ids, query_start, num_computed))

        self._runner = watch_batches(self.model_runner, on_batch)
        if device.type == "cpu":
            keep_generators(self.model_runner)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the cache. A block is cleared whenever a request gets the block."""
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        self._block_sizes = block_sizes(kv_cache_config)
        prepare_clearing(self.model_runner, kv_cache_config.num_blocks, self.model_runner.device)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Admit and release requests before the runner gets them, and schedule the clearing of new cache blocks."""
        to_clear = {*(scheduler_output.new_block_ids_to_zero or ()), *new_blocks(scheduler_output, self._block_sizes)}
        scheduler_output.new_block_ids_to_zero = sorted(to_clear) or None
        self.steering.rows.release(scheduler_output.finished_req_ids)
        for request in scheduler_output.scheduled_new_reqs:
            params = request.sampling_params
            wire = (params.extra_args or {}).get(WIRE_KEY) if params is not None else None
            if wire is not None:
                self.steering.admit(request.req_id, wire)
        return super().execute_model(scheduler_output)  # type: ignore[misc]

    def execute_dummy_batch(self) -> None:
        """Run a batch of no request: no token is steered."""
        self.steering.begin_batch(np.zeros(0, dtype=np.int64))
        super().execute_dummy_batch()  # type: ignore[misc]

    def steering_info(self) -> dict[str, Any]:
        """Return the shapes of the model and of the bank."""
        num_layers, num_edits, _ = self.steering.slots_LER.shape
        num_slots, width = self.steering.table_SD.shape
        return {
            "num_layers": num_layers,
            "width": width,
            "state_bytes": width * self.steering.states_TD.element_size(),
            "num_slots": num_slots - 1,
            "num_rows": self.steering.rows.num_rows,
            "num_edits": num_edits,
            "runner": self._runner,
            "eager": bool(self.vllm_config.model_config.enforce_eager),
        }

    def steering_upload(self, slots: list[int], data: bytes) -> None:
        """Copy float32 vectors into slots by one transfer."""
        vectors = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(len(slots), -1)
        self.steering.fill(slots, vectors)

    def steering_counts(self, texts: list[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return the counts of changed positions of requests, each up to the end of its text (`counts_of`)."""
        return counts_of(self.steering, texts)

    def steering_scores(self, spans: list[tuple[int, int, int, int]]) -> list[list[float]]:
        """Return the scores of rows, each from a position up to another: at each position of so many readings."""
        self.steering.keep_read()
        return [self.steering.readings.scores(*span).ravel().tolist() for span in spans]

    def steering_pooled(self, texts: list[dict[str, Any]]) -> list[Any]:
        """Return the pooled vectors of texts (`KeptStates.pooled`)."""
        self.steering.keep_read()
        return [self.steering.kept.pooled(text) for text in texts]

    def steering_forget(self, rows: list[int]) -> list[None]:
        """Release the states of rows whose texts have ended."""
        self.steering.kept.forget(rows)
        return [None] * len(rows)

    def steering_head(self, data: bytes) -> list[float]:
        """Return logits of the next token for a float32 residual stream after the last block."""
        model = self.model_runner.get_model()
        stream = torch.frombuffer(bytearray(data), dtype=torch.float32)[None]
        with torch.inference_mode():
            hidden = stream.to(self.steering.device, self.vllm_config.model_config.dtype)
            logits = model.compute_logits(self._decoder.final_norm(hidden))
        return logits[0].float().tolist()

    def steering_watched(self) -> list[list[float]]:
        """Return the streams before edits after the last block, of the first tokens of the latest batch."""
        return self.steering.watched_WD.tolist()

    def steering_all_reduce(self, num_tokens: int) -> list[float]:
        """Return the seconds of sums of hidden states over the workers that share the model, [repeats].

        Args:
            num_tokens: Tokens of the batch whose states are summed, as after each attention and each MLP.
        """
        model = self.vllm_config.model_config
        states_ND = torch.ones(num_tokens, model.get_hidden_size(), dtype=model.dtype, device=self.model_runner.device)
        taken_s = []
        for _ in range(_NUM_WARM + _NUM_SUMS):
            begin_s = time.perf_counter()
            # The element that is read waits for the device.
            tensor_model_parallel_all_reduce(states_ND)[0, 0].item()
            taken_s.append(time.perf_counter() - begin_s)
        return taken_s[_NUM_WARM:]

    def steering_tap_on(self, first_position: int) -> None:
        """Begin to keep the residual norms of tokens from `first_position` of their request on."""
        self._tap = NormTap(self._decoder, self.steering, first_position)

    def steering_tap_off(self) -> list[list[float]]:
        """Return the norms by layer, in the order of the tokens, and keep no more."""
        return self._tap.close()


def _new_state(config: Any, num_layers: int, device: torch.device) -> SteeringState:
    """Return buffers of the sizes in vLLM's configuration."""
    settings = config.additional_config[WIRE_KEY]
    captured = config.compilation_config.max_cudagraph_capture_size or 0
    return SteeringState(
        num_layers=num_layers,
        width=config.model_config.get_hidden_size(),
        num_slots=settings["num_slots"],
        num_rows=settings["num_rows"],
        num_edits=settings["num_edits"],
        window=config.model_config.max_model_len,
        num_tokens=max(config.scheduler_config.max_num_batched_tokens, captured) + 512,
        device=device,
        kernel=_kernel(device),
        dtype=config.model_config.dtype,
    )


def _kernel(device: torch.device) -> Kernel | None:
    """Return the kernel for GPUs, which reads each token's edits on the device; None on CPUs, where the host plans."""
    if device.type != "cuda":
        return None
    from poolbench_steerer.plugin.kernel import steer_on_gpu

    return steer_on_gpu


def end_with_owner(interval_s: float = 1.0) -> None:
    """End this process when the replica that started the engine is gone.

    vLLM's engine core outlives a replica killed by SIGKILL. The replica may already be gone at this point, so its id
    comes from the environment and not from the parent of this process.
    """
    owner_id = ProcessSettings.load().engine_owner or os.getppid()

    def watch() -> None:
        try:
            owner = psutil.Process(owner_id)
            while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
                time.sleep(interval_s)
        finally:  # also when the owner was gone before this began
            os._exit(1)

    threading.Thread(target=watch, name="owner-watch", daemon=True).start()


class NormTap:
    """Record residual norms of all tokens until closed. Compiled or captured graphs do not run its Python hooks."""

    def __init__(self, decoder: Decoder, state: SteeringState, first_position: int) -> None:
        self._state = state
        self._first_position = first_position
        self._norms: list[list[float]] = [[] for _ in decoder.blocks]
        self._handles = [
            block.register_forward_hook(self._hook(layer, fused))
            for layer, (block, fused) in enumerate(zip(decoder.blocks, decoder.fused, strict=True))
        ]

    def close(self) -> list[list[float]]:
        """End the measurement and return the norms by layer."""
        for handle in self._handles:
            handle.remove()
        return self._norms

    def _hook(self, layer: int, fused: bool) -> Any:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            positions = torch.from_numpy(self._state.rows.positions)
            hidden, residual = halves(output, fused=fused)
            stream = hidden if residual is None else hidden + residual
            real = stream.view(-1, stream.shape[-1])[: len(positions)][
                (positions >= self._first_position).to(stream.device)
            ]
            self._norms[layer] += real.float().norm(dim=-1).double().tolist()

        return hook
