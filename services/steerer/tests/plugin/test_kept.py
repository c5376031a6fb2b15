"""States of texts that are pooled: which positions are kept, and for whom."""

import numpy as np
import pytest
import torch

from poolbench_steerer.plugin.kept import KeptStates

WIDTH, NUM_ROWS = 2, 4


def states_of(first: int, count: int) -> torch.Tensor:
    """The state of position p is (p, -p)."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    return torch.stack([positions, -positions], dim=1)


def run(kept: KeptStates, *chunks: tuple[int, int, int]) -> None:
    """One pass over chunks of rows: row (in any of its copies), first position, number of tokens."""
    rows = np.concatenate([np.full(count, row) for row, _, count in chunks])
    positions = np.concatenate([np.arange(first, first + count) for _, first, count in chunks])
    batch = kept.of_batch(rows, positions)
    if batch is not None:
        batch.keep(torch.cat([states_of(first, count) for _, first, count in chunks])[torch.from_numpy(batch.tokens)])


def pooled(kept: KeptStates, row: int, num_prompt: int, end: int, *strategies: str, special: tuple = ()) -> list | None:
    answer = kept.pooled(
        {"row": row, "num_prompt": num_prompt, "end": end, "special": list(special), "strategies": strategies}
    )
    if answer is None:
        return None
    return [[None if data is None else np.frombuffer(data, np.float32)[0] for data, _ in part] for part in answer]


@pytest.fixture
def kept() -> KeptStates:
    kept = KeptStates(NUM_ROWS, WIDTH, torch.float32)
    kept.admit(1, 9)
    kept.admit(3, 7)
    kept.admit(2, None)
    return kept


@pytest.mark.parametrize("overrun", [0, 1, 2])
def test_two_texts_of_one_batch_are_pooled_apart(kept, overrun):
    """Prompts in chunks, beside a row that keeps nothing; steps may run over the end."""
    run(kept, (2, 0, 3), (1 + 2 * NUM_ROWS, 0, 4), (3, 0, 5))
    run(kept, (1, 4, 2), (3 + NUM_ROWS, 5, 1), (2, 3, 1))
    for position in range(6, 9 + overrun):
        run(kept, (3, position, 1), (1, position, 1))
    assert pooled(kept, 1, 6, 9, "A1_mean", "P1_last_token") == [[2.5, 5.0], [7.0, 8.0]]
    assert pooled(kept, 3, 5, 7, "A1_mean", "A2_max") == [[2.0, 4.0], [5.5, 6.0]]


def test_a_preempted_text_writes_its_positions_again(kept):
    run(kept, (1, 0, 6))
    run(kept, (1, 6, 1))
    run(kept, (1, 0, 7), (3, 0, 1))
    run(kept, (1, 7, 1))
    assert pooled(kept, 1, 6, 8, "A1_mean") == [[2.5], [6.5]]


def test_special_tokens_are_left_out_of_prompt_and_answer(kept):
    run(kept, (1, 0, 9))
    assert pooled(kept, 1, 4, 9, "A1_mean", "P1_last_token", special=(0, 8)) == [[2.0, 3.0], [5.5, 7.0]]
    assert pooled(kept, 1, 4, 5, "A1_mean", special=(4,)) == [[1.5], [None]]


def test_a_position_that_is_missing_or_not_finite_is_no_vector(kept):
    run(kept, (1, 0, 4))
    run(kept, (1, 5, 1))
    assert pooled(kept, 1, 4, 6, "A1_mean") is None
    assert pooled(kept, 1, 3, 4, "A1_mean") == [[1.0], [3.0]]
    batch = kept.of_batch(np.array([1, 1]), np.array([4, 5]))
    assert batch is not None
    batch.keep(torch.full((2, WIDTH), torch.nan))
    assert pooled(kept, 1, 4, 6, "A1_mean") is None


def test_states_on_their_way_reach_no_later_text_of_the_row(kept):
    batch = kept.of_batch(np.array([1, 1, 3]), np.array([0, 1, 0]))
    assert batch is not None
    kept.forget([1])
    assert pooled(kept, 1, 1, 2, "A1_mean") is None
    kept.admit(1, 4)
    batch.keep(states_of(0, 3))
    assert pooled(kept, 1, 1, 2, "A1_mean") is None
    run(kept, (1, 0, 2))
    assert pooled(kept, 1, 1, 2, "A1_mean") == [[0.0], [1.0]]
    kept.forget([1, 3])
    assert kept.of_batch(np.array([1, 3]), np.array([0, 0])) is None
