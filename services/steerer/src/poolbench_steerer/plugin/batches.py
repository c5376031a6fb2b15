"""Where vLLM's model runners say which tokens of which requests the next forward pass computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: (request ids, first token of each and the end [requests + 1], positions of these tokens in their requests)
OnBatch = Callable[[Sequence[str], np.ndarray, np.ndarray], None]


def watch_batches(runner: Any, on_batch: OnBatch) -> str:
    """Calls ``on_batch`` with requests, token offsets and positions before every forward pass.

    Both of vLLM's model runners are known: the first keeps one persistent batch, the second builds a batch a
    step. Returns which one this is.
    """
    if hasattr(runner, "_model_forward"):
        forward = runner._model_forward

        def steered_forward(*args: Any, **kwargs: Any) -> Any:
            batch = runner.input_batch
            count = batch.num_reqs
            on_batch(
                batch.req_ids[:count],
                runner.query_start_loc.np[: count + 1],
                batch.num_computed_tokens_cpu[:count],
            )
            return forward(*args, **kwargs)

        runner._model_forward = steered_forward
        return "v1"
    prepare = runner.prepare_inputs

    def steered_prepare(*args: Any, **kwargs: Any) -> Any:
        batch = prepare(*args, **kwargs)
        count = len(batch.req_ids)
        on_batch(batch.req_ids, batch.query_start_loc_np[: count + 1], batch.num_computed_tokens_np[:count])
        return batch

    runner.prepare_inputs = steered_prepare
    return "v2"
