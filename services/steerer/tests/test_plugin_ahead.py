"""Orders of steps as both model runners of vLLM give them, with steps that run over the end of a text."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from poolbench_steerer.plugin import WIRE_KEY
from poolbench_steerer.plugin.operators import bind, steer_tokens
from poolbench_steerer.plugin.receipts import RowCount, check, counts_of
from poolbench_steerer.plugin.rows import NUM_LATEST
from poolbench_steerer.plugin.runner import watch_batches
from poolbench_steerer.plugin.spec import Condition, Edit, Steering
from poolbench_steerer.plugin.state import SteeringState
from poolbench_steerer.plugin.worker import SteeringWorkerMixin

NUM_PROMPT, NUM_NEW = 6, 5
END = NUM_PROMPT + NUM_NEW - 1
SLOTS = {"x": 1}
#: The clamp finds every odd position at its target, and changes every even one. The addition changes all.
CLAMPED = Steering((Edit("x", 0, 3.0, "clamp"), Edit("x", 1, 2.0)), "generated")
Chunk = tuple[str, int, int]  # request, first position, number of tokens


class FirstRunner:
    """What the plug-in sees of vLLM's first model runner: a persistent batch, and a forward pass."""

    def step(self, chunks: Sequence[Chunk]) -> None:
        self.input_batch = SimpleNamespace(
            req_ids=[name for name, _, _ in chunks],
            num_reqs=len(chunks),
            num_computed_tokens_cpu=np.array([begin for _, begin, _ in chunks], dtype=np.int32),
        )
        lengths = [length for _, _, length in chunks]
        self.query_start_loc = SimpleNamespace(np=np.array([0, *np.cumsum(lengths)], dtype=np.int32))
        self.chunks = chunks
        self._model_forward()

    def _model_forward(self) -> None:
        forward(self.chunks)


class SecondRunner:
    """What the plug-in sees of the second: one batch for each step."""

    def step(self, chunks: Sequence[Chunk]) -> None:
        self.prepare_inputs(chunks)
        forward(chunks)

    def prepare_inputs(self, chunks: Sequence[Chunk]) -> Any:
        lengths = [length for _, _, length in chunks]
        return SimpleNamespace(
            req_ids=[name for name, _, _ in chunks],
            query_start_loc_np=np.array([0, *np.cumsum(lengths)], dtype=np.int32),
            num_computed_tokens_np=np.array([begin for _, begin, _ in chunks], dtype=np.int32),
        )


def forward(chunks: Sequence[Chunk]) -> None:
    """Two blocks, whose states depend on the position alone, and their steering."""
    positions = [position for _, begin, length in chunks for position in range(begin, begin + length)]
    for layer in range(2):
        hidden = torch.tensor([[3.0 if position % 2 else 1.0, 1.0] for position in positions])
        steer_tokens(hidden, None, STATES[-1], layer)


STATES: list[SteeringState] = []


class Base:
    def execute_model(self, scheduled: Any) -> None:
        self.model_runner.step(scheduled.chunks)


class Worker(SteeringWorkerMixin, Base):
    """The worker's part of a step, without a model and its cache."""

    def __init__(self, runner: Any) -> None:
        self.model_runner = runner
        self.steering = SteeringState(
            num_layers=2, width=2, num_slots=1, num_rows=4, num_tokens=64, device=torch.device("cpu"), num_edits=2,
            window=128,
        )  # fmt: skip
        self.steering.fill([1], torch.tensor([[1.0, 0.0]]))
        bind(self.steering)
        STATES[:] = [self.steering]
        self._block_sizes: list[int | None] = []

        def on_batch(ids: Any, query_start: Any, num_computed: Any) -> None:
            self.steering.begin_batch(self.steering.rows.assign(ids, query_start, num_computed))

        watch_batches(runner, on_batch)

    def step(
        self, *chunks: Chunk, new: dict[str, int] | None = None, finished: Sequence[str] = (), steering: Any = CLAMPED
    ) -> None:
        """Run one step; `new` has the rows of requests that are scheduled for the first time."""
        requests = [
            SimpleNamespace(
                req_id=name,
                sampling_params=SimpleNamespace(extra_args={WIRE_KEY: steering.wire(row, SLOTS, NUM_PROMPT)}),
                block_ids=[],
                num_computed_tokens=0,
            )
            for name, row in (new or {}).items()
        ]
        running = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
        self.execute_model(
            SimpleNamespace(
                chunks=chunks,
                finished_req_ids=set(finished),
                scheduled_new_reqs=requests,
                scheduled_cached_reqs=running,
                new_block_ids_to_zero=None,
            )
        )

    def count(self, row: int, end: int = END) -> RowCount:
        return RowCount.from_wire(counts_of(self.steering, [(row, end)])[0])


@pytest.fixture(params=[FirstRunner, SecondRunner])
def worker(request: Any) -> Worker:
    return Worker(request.param())


def finish(worker: Worker, name: str, overrun: int, begin: int = NUM_PROMPT, beside: str = "") -> None:
    """Decode to the end of a text, and the steps behind it, beside a request that goes on."""
    for position in range(begin, END + overrun):
        others = [(beside, 40 + position, 1)] if beside else []
        worker.step(*others, (name, position, 1))


def of_text(worker: Worker, row: int) -> tuple[Any, RowCount]:
    count = worker.count(row)
    return check(CLAMPED, count, NUM_PROMPT, count.end - NUM_PROMPT + 1), count


def by_layer(receipt: Any) -> list[tuple[int, int, int]]:
    return [(each.positions_expected, each.positions_applied, each.positions_changed) for each in receipt.by_layer]


#: Positions 5 to 9 are steered, of which 6 and 8 are even.
EXPECTED = [(5, 5, 2), (5, 5, 5)]


@pytest.mark.parametrize("overrun", [0, 1, 2])
def test_the_receipt_of_a_text_leaves_out_what_ran_over_its_end(worker, overrun):
    """The prompt comes in two chunks, beside a request without steering."""
    worker.step(("plain", 40, 1), ("a", 0, 4), new={"a": 1})
    worker.step(("a", 4, 2))
    finish(worker, "a", overrun, beside="plain")
    receipt, count = of_text(worker, 1)
    assert by_layer(receipt) == EXPECTED
    assert (count.end, count.beyond) == (END, overrun)


@pytest.mark.parametrize("overrun", [0, 1, 2])
def test_a_text_that_was_preempted_is_counted_alike(worker, overrun):
    worker.step(("a", 0, NUM_PROMPT), new={"a": 1})
    worker.step(("a", 6, 1))
    worker.step(("a", 7, 1))
    worker.step(("a", 0, 8))  # again, from its first position on
    finish(worker, "a", overrun, begin=8)
    receipt, count = of_text(worker, 1)
    assert by_layer(receipt) == EXPECTED
    assert (count.repeated, count.beyond) == (3, overrun)


@pytest.mark.parametrize("overrun", [0, 1, 2])
def test_the_next_request_of_a_row_counts_its_own_positions(worker, overrun):
    """The first one is aborted: vLLM says so with the step that has the next one."""
    worker.step(("a", 0, NUM_PROMPT), new={"a": 1})
    for position in range(6, 7 + overrun):
        worker.step(("a", position, 1))
    worker.step(("b", 0, NUM_PROMPT), new={"b": 1}, finished=["a"])
    finish(worker, "b", overrun)
    receipt, _ = of_text(worker, 1)
    assert by_layer(receipt) == EXPECTED


@pytest.mark.parametrize(("overrun", "end"), [(3, END), (NUM_LATEST, END), (NUM_LATEST + 4, END + 4)])
def test_behind_a_stop_string_the_latest_positions_are_left_out(worker, overrun, end):
    """The host looks for stop strings itself, and may be many steps late."""
    worker.step(("a", 0, NUM_PROMPT), new={"a": 1})
    finish(worker, "a", overrun)
    receipt, count = of_text(worker, 1)
    assert (count.end, count.beyond) == (end, min(overrun, NUM_LATEST))
    steered = range(5, end)
    assert by_layer(receipt) == [(len(steered), len(steered), sum(p % 2 == 0 for p in steered)), (len(steered),) * 3]


@pytest.mark.parametrize("overrun", [0, 1, 2])
def test_spared_positions_are_left_out_too(worker, overrun):
    """The condition holds at odd positions, where the state is (3, 1), so positions 6 and 8 are spared."""
    steering = Steering(CLAMPED.edits[1:], where=Condition("x", 0, 2.0))
    worker.step(("a", 0, NUM_PROMPT), new={"a": 1}, steering=steering)
    finish(worker, "a", overrun)
    count = worker.count(1)
    receipt = check(steering, count, NUM_PROMPT, count.end - NUM_PROMPT + 1)
    assert by_layer(receipt) == [(5, 3, 3)]
    assert (receipt.positions_spared, count.beyond) == (2, overrun)


def test_nothing_ran_over_the_end_of_what_is_not_steered(worker):
    worker.step(("a", 0, NUM_PROMPT), new={"a": 1})
    assert worker.count(1, end=2).beyond == 1  # position 5, the first one that is steered
    assert worker.count(2).beyond == 0  # a row without a request
