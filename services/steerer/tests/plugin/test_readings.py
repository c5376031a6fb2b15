"""Directions that are read behind the edits of a layer."""

import numpy as np
import pytest
import torch
from services.steerer.tests.plugin.test_operators import ADD, SHIFT, VECTORS, steer, wire

from poolbench_steerer.plugin.operators import bind
from poolbench_steerer.plugin.state import SteeringState


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
    state.keep_scores()
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
