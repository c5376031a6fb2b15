"""The steering op by hand, on fused and unfused block outputs."""

import numpy as np
import pytest
import torch

from poolbench_steerer.plugin.operators import SteeringState, bind, decoder_blocks, steer_output

VECTORS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def make_state(static: bool = False) -> SteeringState:
    state = SteeringState(
        num_layers=2,
        width=2,
        num_slots=2,
        num_rows=4,
        num_tokens=8,
        device=torch.device("cpu"),
        static=static,
    )
    state.table_SD.copy_(VECTORS)
    state.admit("a", {"row": 1, "start": 0, "edits": [[0, 1, 3.0], [1, 2, -0.5]]})
    state.admit("b", {"row": 2, "start": 0, "edits": [[0, 2, 0.0]]})
    bind(state)
    return state


@pytest.mark.parametrize("static", [False, True])
def test_each_row_gets_its_own_vector_and_the_rest_stays(static):
    state = make_state(static)
    state.begin_batch(np.array([1, 0, 2, 1]))
    hidden = torch.ones(6, 2)  # two rows of padding
    torch.ops.poolbench_steerer.steer(hidden, 0)
    assert hidden.tolist() == [[4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [4.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    torch.ops.poolbench_steerer.steer(hidden, 1)
    assert hidden[:2].tolist() == [[4.0, 0.0], [1.0, 1.0]]
    assert state.changed_LR.tolist() == [[0, 2, 0, 0], [0, 2, 0, 0]]


def test_padding_after_a_larger_batch_is_not_steered():
    state = make_state()
    state.begin_batch(np.array([1, 1, 1, 1]))
    state.begin_batch(np.array([1]))
    hidden = torch.ones(4, 2)
    torch.ops.poolbench_steerer.steer(hidden, 0)
    assert hidden.tolist() == [[4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_an_empty_slot_shows_in_the_count():
    state = make_state()
    state.table_SD[1] = 0
    state.begin_batch(np.array([1, 1]))
    torch.ops.poolbench_steerer.steer(torch.ones(2, 2), 0)
    assert state.changed_LR.sum() == 0


def test_a_change_lost_in_rounding_shows_in_the_count():
    state = make_state()
    state.begin_batch(np.array([1, 1]))
    hidden = torch.tensor([[1e9, 0.0], [1.0, 0.0]])
    torch.ops.poolbench_steerer.steer(hidden, 0)
    assert state.changed_LR[0, 1] == 1


def test_nan_in_padding_is_no_change():
    state = make_state(static=True)
    state.begin_batch(np.array([1]))
    torch.ops.poolbench_steerer.steer(torch.full((3, 2), float("nan")), 0)
    assert state.changed_LR.sum() == 0


def test_a_row_taken_over_counts_from_zero():
    state = make_state()
    state.begin_batch(np.array([1, 1]))
    torch.ops.poolbench_steerer.steer(torch.ones(2, 2), 0)
    state.rows.release(["a"])
    state.admit("c", {"row": 1, "start": 0, "edits": [[0, 2, 1.0]]})
    assert state.changed_LR[:, 1].tolist() == [0, 0]


class Fused(torch.nn.Module):
    """A block that returns (output, residual)."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.clone()


class Unfused(torch.nn.Module):
    """A block that returns the residual stream."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@pytest.mark.parametrize("block", [Fused(), Unfused()])
def test_the_residual_stream_is_steered_exactly_once(block):
    state = make_state()
    state.begin_batch(np.array([1, 0]))
    block.register_forward_hook(steer_output(0))
    with torch.inference_mode():
        output = block(torch.ones(2, 2))
    stream = output if isinstance(output, torch.Tensor) else output[0] + output[1]
    assert stream.tolist() == [[6.0, 3.0], [3.0, 3.0]]


def test_the_op_survives_torch_compile():
    state = make_state()
    block = Fused()
    block.register_forward_hook(steer_output(0))
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    state.begin_batch(np.array([1, 0]))
    assert compiled(torch.ones(2, 2))[0].tolist() == [[5.0, 2.0], [2.0, 2.0]]
    state.begin_batch(np.array([0, 1]))
    assert compiled(torch.ones(2, 2))[0].tolist() == [[2.0, 2.0], [5.0, 2.0]]


def test_blocks_are_found_by_number():
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Fused() for _ in range(3))
    model.experts = torch.nn.ModuleList(Fused() for _ in range(5))
    assert decoder_blocks(model, 3) == list(model.layers)
    with pytest.raises(RuntimeError, match="found: none"):
        decoder_blocks(model, 4)
