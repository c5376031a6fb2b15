"""Consumes the captures of one batch while the GPU already computes the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poolbench_extractor.encode import Encoded
from poolbench_extractor.forward.batching import is_out_of_memory, run_halving
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.model import Decoder

Forward = Callable[[Sequence[Encoded]], Captured]
Consume = Callable[[Sequence[Encoded], Captured], None]


class Overlap:
    """Runs forward passes one batch ahead of their consumption.

    Pooling needs the host between its device operations. On the stream of the forward passes these operations
    would wait for the next pass, so they have a stream of their own.

    Args:
        forward: Captures a batch. It must not wait for the device.
        consume: Writes results by passage index, so that a batch can be consumed again.
        stream: Stream for ``consume``; None keeps the order of calls without one.
    """

    def __init__(self, forward: Forward, consume: Consume, stream: torch.cuda.Stream | None) -> None:
        self._forward = forward
        self._consume = consume
        self._stream = stream
        self._waiting: tuple[Sequence[Encoded], Captured, torch.cuda.Event | None] | None = None

    def run(self, batch: Sequence[Encoded]) -> None:
        """Starts a batch, and consumes the one before."""
        captured = self._forward(batch)
        ready = torch.cuda.current_stream(self._stream.device).record_event() if self._stream else None
        before, self._waiting = self._waiting, (batch, captured, ready)
        self._finish(before)

    def flush(self) -> None:
        """Consumes the last batch."""
        before, self._waiting = self._waiting, None
        self._finish(before)

    def _finish(self, waiting: tuple[Sequence[Encoded], Captured, torch.cuda.Event | None] | None) -> None:
        if waiting is None:
            return
        batch, captured, ready = waiting
        try:
            self._consume_on_stream(batch, captured, ready)
            return
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, whose traceback would keep the tensors of the failed attempt alive.
        run_halving(batch, lambda part: self._consume(part, self._forward(part)))

    def _consume_on_stream(self, batch: Sequence[Encoded], captured: Captured, ready: torch.cuda.Event | None) -> None:
        if self._stream is None or ready is None:
            self._consume(batch, captured)
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            self._consume(batch, captured)
            # The captures belong to the other stream's pool, which may hand their memory on once they are dropped.
            self._stream.synchronize()


def side_stream(decoder: Decoder) -> torch.cuda.Stream | None:
    """A stream for consumption where the whole model is on one GPU; None elsewhere."""
    devices = {parameter.device for parameter in decoder.model.parameters()}
    if len(devices) != 1 or (device := devices.pop()).type != "cuda":
        return None
    return torch.cuda.Stream(device)
