"""Batches, slots and rows of the state that follow one another."""

import numpy as np
import torch
from services.steerer.tests.plugin.test_operators import ADD, make_state, steer, wire


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
