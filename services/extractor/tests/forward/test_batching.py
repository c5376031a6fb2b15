"""The order of work on a device: forward passes ahead of pooling, by a clock of the device."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import pyarrow as pa
import pytest
import torch
from services.extractor.tests.conftest import TEXTS

from poolbench.pooling import batch as pooling
from poolbench.pooling.batch import Request
from poolbench_extractor import core
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import calibrate, extract
from poolbench_extractor.encode import Encoded, PassageTexts, Reading
from poolbench_extractor.forward import capture as forward
from poolbench_extractor.forward.batching import BatchesAhead, together
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder

#: Seconds of the device for a forward pass and for a copy, and of the host for launching a pass and for weighing.
FORWARD_S, COPY_S, LAUNCH_S, WEIGH_S = 10.0, 0.1, 1.0, 2.0
PASSAGES = PassageTexts([f"p{i}" for i in range(20)], [f"{text} {i}" for i in range(4) for text in TEXTS])
READING = Reading(limits=BatchLimits(max_passages=3))
WANTED = {layer: [Request.of(name) for name in ("A1_mean", "A2_max", "S1_attention")] for layer in (0, 2)}


@dataclass
class Device:
    """A device that works through a queue while the host goes on, and two clocks.

    Attributes:
        host_s: Time on the host.
        busy_s: Time until which the device has work.
        idle_s: How long the device had none, between its first pass and its last.
        log: Forward passes, copies begun, and waits for copies.
        captured: What the forward passes captured.
        alive: At each forward pass, how many batches had captured states, its own included.
    """

    host_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    log: list[str] = field(default_factory=list)
    captured: list[weakref.ref[Captured]] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)

    def forget(self) -> None:
        """Set both clocks back, and empty the log."""
        self.host_s = self.busy_s = self.idle_s = 0.0
        self.log, self.captured, self.alive = [], [], []

    def run(self, seconds: float, *, is_forward: bool = False) -> float:
        """Give the device work; return when it ends."""
        if is_forward and self.busy_s:
            self.idle_s += max(0.0, self.host_s - self.busy_s)
        self.busy_s = max(self.busy_s, self.host_s) + seconds
        return self.busy_s


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device of all extractions of a test."""
    device, capture, weighed = Device(), core.capture, pooling._weighed

    class Copy:
        """In place of `HostCopy`: the values cannot be had before the device has come to them."""

        def __init__(self, values: torch.Tensor) -> None:
            self._values, self._done_s = values, device.run(COPY_S)
            device.log.append("copy")

        def wait(self) -> torch.Tensor:
            device.log.append("wait")
            device.host_s = max(device.host_s, self._done_s)
            return self._values

    def captured(*arguments: Any, **settings: Any) -> Captured:
        device.log.append("forward")
        device.host_s += LAUNCH_S
        device.run(FORWARD_S, is_forward=True)
        result = capture(*arguments, **settings)
        device.captured.append(weakref.ref(result))
        device.alive.append(sum(one() is not None for one in device.captured))
        return result

    def weigh(*arguments: Any) -> Any:
        device.host_s += WEIGH_S
        return weighed(*arguments)

    monkeypatch.setattr(core, "capture", captured)
    monkeypatch.setattr(pooling, "_weighed", weigh)
    for module in (core, pooling, forward):
        monkeypatch.setattr(module, "HostCopy", Copy)
    return device


class InTurn(BatchesAhead):
    """Each batch to its end before the next."""

    def begin(self, batch: Sequence[Encoded]) -> None:
        super().begin(batch)
        self.finish()


def forwards_before_waits(log: list[str]) -> list[int]:
    """How many forward passes had begun at each wait."""
    begun, seen = 0, []
    for entry in log:
        begun += entry == "forward"
        if entry == "wait":
            seen.append(begun)
    return seen


def test_the_next_forward_pass_begins_before_the_host_waits_for_the_last(device: Device, llama: Decoder) -> None:
    extract(llama, PASSAGES, WANTED, reading=READING)
    num_batches, waits = device.log.count("forward"), forwards_before_waits(device.log)
    # Of each batch, the vectors of each layer are waited for last. Norms and signals come before, one pass earlier.
    num_vectors = len(WANTED)
    num_others = len(waits) // num_batches - num_vectors
    expected = [
        min(batch + later, num_batches)
        for batch in range(1, num_batches + 1)
        for later, count in ((1, num_others), (2, num_vectors))
        for _ in range(count)
    ]
    assert num_batches == 7 and waits == sorted(expected)
    assert device.idle_s == 0 and max(device.alive) == 2


def test_without_that_order_the_device_is_idle_and_vectors_are_the_same(
    device: Device, llama: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, ahead_s = extract(llama, PASSAGES, WANTED, reading=READING), device.host_s
    device.forget()
    monkeypatch.setattr(core, "BatchesAhead", InTurn)
    in_turn = extract(llama, PASSAGES, WANTED, reading=READING)
    assert forwards_before_waits(device.log)[0] == max(device.alive) == 1
    assert device.idle_s > 0 and device.host_s > ahead_s
    assert ahead.keys() == in_turn.keys()
    for role, table in ahead.items():
        assert table.equals(in_turn[role], check_metadata=True), role


def test_the_host_waits_for_no_norms_of_calibration_before_the_next_pass(device: Device, llama: Decoder) -> None:
    calibrate(llama, PASSAGES, [0, 2], reading=READING)
    waits = forwards_before_waits(device.log)
    assert waits[0] == 2 and waits == sorted(waits)
    assert device.idle_s == 0 and max(device.alive) == 1  # norms alone are left of the last batch


def test_kept_states_travel_while_the_next_pass_runs(device: Device, llama: Decoder) -> None:
    shards: list[pa.Table] = []
    extract(llama, PASSAGES, WANTED, keep={0: shards.append}, reading=READING)
    assert forwards_before_waits(device.log)[0] == 2 and device.idle_s == 0 and max(device.alive) == 2
    assert sum(shard.num_rows for shard in shards) == 20


NUMBERED = [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]
Fails = Callable[[list[int], int, int], bool]  # passages, step from 0 on, batches that hold states


def run(batches: list[list[int]], fails: Fails) -> tuple[list[int], list[tuple[int, int]]]:
    """Run batches of three steps each, of which the first two hold states. Return results, and first steps."""
    done: list[int] = []
    begun: list[tuple[int, int]] = []
    holding: list[Any] = []

    def steps(batch: list[int]) -> Any:
        begun.append((batch[0], len(batch)))
        holding.append(batch)
        try:
            for step in range(2):
                if fails(batch, step, len(holding)):
                    raise torch.OutOfMemoryError("out of memory")
                if step == 0:
                    yield
        finally:
            holding.remove(batch)
        yield
        done.extend(batch)

    ahead = BatchesAhead(steps)  # type: ignore[arg-type]
    for batch in batches:
        ahead.begin(batch)  # type: ignore[arg-type]
    ahead.finish()
    return sorted(done), begun


@pytest.mark.parametrize("step", [0, 1])
def test_a_batch_that_does_not_fit_beside_another_runs_alone(step: int) -> None:
    done, begun = run(NUMBERED, lambda batch, at, holding: at == step and holding > 1)
    assert done == [*chain(*NUMBERED)]
    assert all(size == 4 for _, size in begun)


@pytest.mark.parametrize("step", [0, 1])
def test_a_batch_that_does_not_fit_alone_is_halved(step: int) -> None:
    done, begun = run(NUMBERED, lambda batch, at, _: at == step and 20 in batch and len(batch) > 1)
    assert done == [*chain(*NUMBERED)]
    assert {(20, 4), (20, 2), (20, 1), (21, 1), (22, 2)} <= set(begun) and (30, 4) in begun


def test_parts_of_a_batch_take_their_steps_side_by_side() -> None:
    log: list[str] = []

    class Part:
        def __init__(self, name: str, num_steps: int) -> None:
            self.name, self.left = name, num_steps

        def __iter__(self) -> Self:
            return self

        def __next__(self) -> None:
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            log.append(self.name)

    assert len(list(together([Part("a", 2), Part("b", 1), Part("c", 3)]))) == 3
    assert "".join(log) == "abcacc"
