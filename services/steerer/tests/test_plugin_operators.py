"""The steering op and what is read behind it, by hand, on fused and unfused block outputs."""

import numpy as np
import pytest
import torch

from poolbench_steerer.plugin.operators import bind, steer_output
from poolbench_steerer.plugin.receipts import counts_of
from poolbench_steerer.plugin.spec import OPERATION_CODES
from poolbench_steerer.plugin.state import SteeringState

VECTORS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
ADD, PRESERVING, CLAMP, ERASE = OPERATION_CODES.values()
SHIFT = 4  # rows of the state: from a row to its twin, and from there to the copy without edits


def wire(row: int, edits: list) -> dict:
    return {"row": row, "start": 0, "stop": None, "edits": edits}


def make_state() -> SteeringState:
    state = SteeringState(
        num_layers=2, width=2, num_slots=2, num_rows=SHIFT, num_tokens=8, device=torch.device("cpu"), num_edits=3
    )
    state.table_SD.copy_(VECTORS)
    state.admit("a", wire(1, [[0, 1, ADD, 3.0], [1, 2, ADD, -0.5]]))
    state.admit("b", wire(2, []))
    bind(state)
    return state


def steer(hidden: torch.Tensor, layer: int = 0, residual: torch.Tensor | None = None) -> list:
    torch.ops.poolbench_steerer.steer(hidden, residual, layer)
    return hidden.tolist()


def test_each_row_gets_its_own_vector_and_the_rest_stays():
    state = make_state()
    state.begin_batch(np.array([1, 0, 2, 1 + SHIFT]))
    hidden = torch.ones(6, 2)  # two rows of padding
    assert steer(hidden) == [[4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [4.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    assert steer(hidden, layer=1)[:2] == [[4.0, 0.0], [1.0, 1.0]]
    assert state.changed_LR.tolist() == [[0, 1, 0, 0, 0, 1] + 6 * [0]] * 2
    state = make_state()
    state.begin_batch(np.array([1, 0]))
    assert steer(torch.ones(1, 3, 2)) == [[[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]]]


def test_what_is_not_finite_is_no_change_and_meets_no_position():
    state = make_state()
    state.begin_batch(np.array([1]))
    steer(torch.full((3, 2), float("nan")))
    assert state.changed_LR.sum() == 0
    state = make_state()
    state.admit("d", wire(3, [[0, 1, CLAMP, 3.0]]))
    state.begin_batch(np.array([3, 3]))
    steer(torch.tensor([[float("inf"), 4.0], [float("nan"), 1.0]]))
    assert state.applied_LR.sum() == 0


def test_a_position_that_was_met_counts_even_where_rounding_loses_its_addition():
    state = make_state()
    state.begin_batch(np.array([1, 1]))
    steer(torch.tensor([[1e9, 0.0], [1.0, 0.0]]))
    assert (int(state.changed_LR[0, 1]), int(state.applied_LR[0, 1])) == (1, 2)
    state = make_state()
    state.admit("c", wire(3, [[0, 1, ADD, 1e-46]]))
    state.begin_batch(np.array([3]))
    assert steer(torch.ones(1, 2)) == [[1.0, 1.0]]
    assert (state.applied_LR[0, 3].item(), state.changed_LR[0, 3].item()) == (1, 0)


@pytest.mark.parametrize(
    "edit", [[0, 1, ADD, 1e38], [0, 1, PRESERVING, 1e38], [0, 1, CLAMP, 1e38], [0, 1, ERASE, 1e38]]
)
@pytest.mark.parametrize("fused", [True, False])
def test_a_state_that_an_edit_makes_too_large_is_zero_and_counted(edit, fused):
    """Both if it is not finite and if it is finite, but overflows in the next norm."""
    state = make_state()
    state.fill([1], torch.tensor([[1e3, 1e3]]) if edit[2] in (ADD, PRESERVING) else torch.tensor([[1.0, 0.0]]))
    state.admit("hostile", wire(3, [edit]))
    state.begin_batch(np.array([3, 2 + 2 * SHIFT]))
    hidden = torch.tensor([[3.0, 4.0]] * 2)
    assert steer(hidden, 0, torch.ones(2, 2) if fused else None) == [[0.0, 0.0], [3.0, 4.0]]
    assert state.broken_LR.nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1e20])
@pytest.mark.parametrize("half", [0, 1])
def test_any_broken_state_behind_the_last_block_is_counted_for_its_owner(broken, half):
    state = make_state()
    state.begin_batch(np.array([1, 2 + 2 * SHIFT]))
    halves = [torch.ones(3, 2), torch.ones(3, 2)]
    halves[half][1, 1] = broken
    steer(halves[0], 1, halves[1])  # the last of two layers
    assert halves[0].tolist() == [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert state.broken_LR.nonzero().tolist() == [[1, 2 + 2 * SHIFT]]
    found = counts_of(state, [(1, 1), (2, 1)])
    assert [reply["broken"] for reply in found] == [[], [[1, 1]]]


def test_a_broken_state_that_counts_for_no_request_stays_broken():
    """Log-probabilities are asked for without a row: a cleared state would make numbers of what is an error."""
    state = make_state()
    state.begin_batch(np.array([0, 2]))
    hidden = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])
    steer(hidden, layer=1)
    assert hidden[0].isnan().any()
    assert not state.broken_LR.any()


def test_float16_states_break_where_the_type_ends():
    state = make_state()
    state.fill([1], torch.tensor([[3e4, 0.0]]))
    state.admit("a2", wire(1, [[0, 1, ADD, 1.0]]))
    state.admit("b2", wire(2, [[0, 1, ADD, 2.0]]))
    state.begin_batch(np.array([1, 2]))
    assert steer(torch.full((2, 2), 9e3, dtype=torch.float16)) == [[39008.0, 9000.0], [0.0, 0.0]]
    assert state.broken_LR.nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        # The stream is (3, 4): the op sees (1, 1) and (2, 3) of it, and slot 2 holds (0, 2), of norm 2.
        ([[0, 1, ADD, 2.0], [0, 2, ADD, 0.5]], (5.0, 5.0)),
        ([[0, 1, PRESERVING, 9.0]], (12 * 5 / 160**0.5, 4 * 5 / 160**0.5)),  # (12, 4) scaled back to norm 5
        ([[0, 2, CLAMP, 7.0]], (3.0, 7.0)),
        ([[0, 2, ERASE, 1.0]], (3.0, 0.0)),
        ([[0, 2, ERASE, 0.25]], (3.0, 3.0)),
        ([[0, 1, ADD, 2.0], [0, 1, CLAMP, -1.0], [0, 2, ERASE, 1.0]], (-1.0, 0.0)),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_operations_by_hand(edits, expected, fused):
    state = make_state()
    state.admit("d", wire(3, edits))
    state.begin_batch(np.array([0, 3, 3 + SHIFT]))
    hidden = torch.tensor([[1.0, 1.0] if fused else [3.0, 4.0]] * 3)
    residual = torch.tensor([[2.0, 3.0]] * 3) if fused else None
    untouched = residual.clone() if fused else None
    steer(hidden, 0, residual)
    stream = hidden if residual is None else hidden + residual
    assert stream[0].tolist() == [3.0, 4.0]
    for token in (1, 2):
        assert stream[token].tolist() == pytest.approx(expected, abs=1e-6)
    assert residual is None or torch.equal(residual, untouched)
    assert state.applied_LR[0].tolist() == state.changed_LR[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("fused", [True, False])
def test_edits_with_a_condition_act_where_it_holds(fused):
    """The condition reads the first number of the stream before the edits; (2, 5) and NaN do not pass 3."""
    state = make_state()
    edits = [[0, 2, ADD, 1.0], [1, 1, CLAMP, 9.0]]
    state.admit("d", wire(3, edits) | {"where": [0, 1, 1.0, 3.0]})
    state.admit("e", wire(2, edits) | {"where": [0, 1, -1.0, 3.0]})
    state.begin_batch(np.array([3, 3, 0, 2, 2, 3 + SHIFT]))
    streams = torch.tensor([[4.0, 5.0], [2.0, 5.0], [4.0, 5.0], [4.0, 5.0], [2.0, 5.0], [float("nan"), 5.0]])
    residual = torch.ones(6, 2) if fused else None
    hidden = streams - 1 if fused else streams.clone()
    for layer in (0, 1):
        steer(hidden, layer, residual)
    expected = [[9.0, 7.0], [2.0, 5.0], [4.0, 5.0], [4.0, 5.0], [9.0, 7.0]]
    assert (hidden + 1 if fused else hidden)[:5].tolist() == expected
    assert hidden[5].tolist() == [0.0, 0.0]  # broken behind the last block
    twin = 3 + SHIFT
    assert state.spared_LR[:, [2, 3, twin]].tolist() == [[1, 1, 1]] * 2
    assert state.applied_LR[:, [2, 3, twin]].tolist() == state.changed_LR[:, [2, 3, twin]].tolist() == [[1, 1, 0]] * 2
    state.admit("f", wire(3, edits))  # the next request of the row has no condition
    state.begin_batch(np.array([3]))
    assert steer(torch.tensor([[2.0, 5.0]])) == [[2.0, 7.0]]
    assert int(state.spared_LR[0, 3]) == 0


def test_a_projection_at_its_target_is_met_but_not_changed():
    state = make_state()
    state.admit("d", wire(3, [[0, 1, CLAMP, 3.0]]))
    state.begin_batch(np.array([3, 3]))
    assert steer(torch.tensor([[3.0, 4.0], [2.0, 4.0]])) == [[3.0, 4.0], [3.0, 4.0]]
    assert (int(state.changed_LR[0, 3]), int(state.applied_LR[0, 3])) == (1, 2)


@pytest.mark.parametrize("edits", [[[0, 1, CLAMP, 3.0]], [[0, 2, ADD, 1.0], [0, 1, ADD, 1.0]], [[0, 1, ERASE, 1.0]]])
def test_an_empty_slot_meets_no_position(edits):
    state = make_state()
    state.fill([1], torch.zeros(1, 2))
    state.admit("d", wire(3, edits))
    state.begin_batch(np.array([3]))
    steer(torch.tensor([[3.0, 4.0]]))
    assert state.applied_LR.sum() == 0


@pytest.mark.parametrize("operation", [PRESERVING, CLAMP, ERASE])
def test_half_precision_halves_are_summed_before_they_are_projected(operation):
    """One half alone has another projection and another norm than the stream."""
    rng = np.random.default_rng(3)
    width, vector = 64, torch.tensor(rng.standard_normal(64), dtype=torch.float32)
    state = SteeringState(
        num_layers=1, width=width, num_slots=1, num_rows=2, num_tokens=4, device=torch.device("cpu"), num_edits=1
    )
    bind(state)
    state.fill([1], vector[None])
    state.admit("a", wire(1, [[0, 1, operation, 0.75]]))
    state.begin_batch(np.array([1] * 4))
    hidden, residual = torch.tensor(rng.standard_normal((2, 4, width)), dtype=torch.bfloat16)
    before = hidden.double() + residual.double()
    steer(hidden, 0, residual)
    after, unit = hidden.double() + residual.double(), vector.double() / vector.double().norm()
    rounding = 2**-8 * hidden.double().abs().max() * width**0.5
    if operation == PRESERVING:
        torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1), atol=rounding, rtol=0)
    else:
        target = torch.full((4,), 0.75).double() if operation == CLAMP else 0.25 * (before @ unit)
        torch.testing.assert_close(after @ unit, target, atol=float(rounding), rtol=0)
        torch.testing.assert_close(
            after - (after @ unit)[:, None] * unit, before - (before @ unit)[:, None] * unit, atol=0.05, rtol=0
        )


def test_a_token_does_not_depend_on_its_neighbours():
    """Bit for bit, for all kinds of edits, alone and among 40 tokens."""
    rng = np.random.default_rng(4)
    vectors = torch.tensor(rng.standard_normal((8, 96)), dtype=torch.float32)
    hidden, residual = torch.tensor(rng.standard_normal((2, 40, 96)), dtype=torch.float32)
    state = SteeringState(
        num_layers=1, width=96, num_slots=8, num_rows=16, num_tokens=64, device=torch.device("cpu"), num_edits=3
    )
    bind(state)
    state.fill(list(range(1, 9)), vectors)
    for row in range(1, 15):
        edits = [[0, 1 + (row + e) % 8, 1 + (row + e) % 4, 0.3 * row] for e in range(1 + row % 3)]
        state.admit(f"r{row}", wire(row, edits))
    token_rows = np.arange(40) % 15
    state.begin_batch(token_rows)
    together = hidden.clone()
    steer(together, 0, residual)
    for token in range(40):
        state.begin_batch(token_rows[token : token + 1])
        alone = hidden[token : token + 1].clone()
        steer(alone, 0, residual[token : token + 1])
        assert torch.equal(alone[0], together[token])


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
    handle = block.register_forward_hook(steer_output(0))
    with torch.inference_mode():
        output = block(torch.ones(2, 2))
    stream = output if isinstance(output, torch.Tensor) else output[0] + output[1]
    handle.remove()
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


@pytest.mark.parametrize("fused", [True, False])
def test_a_direction_is_read_behind_the_edits_of_its_layer(fused):
    """Scores by hand: vector 2 is (0, 2), and (3, 0) is added to the stream at layer 0."""
    state = SteeringState(
        num_layers=2, width=2, num_slots=2, num_rows=SHIFT, num_tokens=8, device=torch.device("cpu"), window=16
    )
    state.table_SD.copy_(VECTORS)
    bind(state)
    state.admit("a", wire(1, [[0, 1, ADD, 3.0]]) | {"readings": [[1, 2], [0, 1]], "read_from": 5})
    state.admit("b", wire(2, []))
    rows = np.array([1, 2, 1 + SHIFT, 1 + 2 * SHIFT])
    for position in (4, 5, 6):
        state.rows.positions = np.array([position, position, 7, 8])
        state.begin_batch(rows)
        hidden = torch.full((5, 2), float(position))
        residual = torch.full((5, 2), 2.0) if fused else None
        steer(hidden, 0, residual)
        steer(hidden, 1, residual)
    state.keep_read()
    more = 2.0 if fused else 0.0
    scores = state.readings.scores(1, 4, 9, 2)
    assert np.isnan(scores[0]).all()  # not requested
    expected = [[5 + more, 8 + more], [6 + more, 9 + more], [6 + more, 9 + more], [6 + more, 6 + more]]
    assert scores[1:].tolist() == expected
    assert state.scores_TK.isnan().all()
    state.admit("c", wire(1, []))
    state.begin_batch(np.array([1]))
    assert steer(torch.ones(1, 2)) == [[1.0, 1.0]]
    assert state.scores_TK.isnan().all() and not state.readings_LKR.any()


def test_padding_and_refilled_slots_of_the_next_batch():
    state = make_state()
    state.begin_batch(np.array([1, 1, 1, 1]))
    state.begin_batch(np.array([1]))
    assert steer(torch.ones(4, 2)) == [[4.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    assert state.token_rows_T[:4].tolist() == [1, 0, 0, 0]
    state = make_state()
    state.begin_batch(np.array([1]))
    assert steer(torch.ones(1, 2)) == [[4.0, 1.0]]
    state.fill([1], torch.tensor([[0.0, 1.0]]))
    state.begin_batch(np.array([1]))
    assert steer(torch.ones(1, 2)) == [[1.0, 4.0]]


def test_a_row_taken_over_counts_and_steers_afresh_in_the_same_batch():
    state = make_state()
    state.begin_batch(np.array([1, 1]))
    steer(torch.ones(2, 2))
    state.rows.release(["a"])
    state.admit("c", wire(1, [[0, 2, ADD, 1.0]]))
    state.begin_batch(np.array([1, 1]))
    assert steer(torch.ones(2, 2)) == [[1.0, 3.0], [1.0, 3.0]]
    assert state.changed_LR[:, 1].tolist() == [2, 0]
