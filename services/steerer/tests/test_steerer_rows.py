"""Rows: every token of a batch belongs to the right request, by hand."""

import numpy as np

from poolbench_steerer.plugin.rows import RowTable


def table(**starts: int) -> RowTable:
    """A table with one request a keyword, rows 1, 2, ... in order, each with an edit at layer 0."""
    rows = RowTable(num_layers=2, num_rows=8)
    for row, (request, start) in enumerate(starts.items(), start=1):
        rows.admit(request, {"row": row, "start": start, "edits": [[0, row, 0.5 * row]]})
    return rows


def assign(rows: RowTable, **chunks: tuple[int, int]) -> list[int]:
    """Assigns a batch of (first position, number of tokens) by request."""
    lengths = [length for _, length in chunks.values()]
    starts = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    return rows.assign(list(chunks), starts, np.array([begin for begin, _ in chunks.values()])).tolist()


def test_a_prompt_is_steered_at_its_last_position_only():
    assert assign(table(a=3, b=1), a=(0, 4), b=(0, 2)) == [0, 0, 0, 1, 0, 2]


def test_decoding_steers_every_token_of_steered_requests():
    rows = table(a=3, b=1)
    assign(rows, a=(0, 4), b=(0, 2))
    assert assign(rows, b=(2, 1), x=(9, 1), a=(4, 1)) == [2, 0, 1]


def test_chunks_of_a_prompt_are_steered_in_the_chunk_that_holds_the_position():
    rows = table(a=6)
    assert assign(rows, a=(0, 4)) == [0, 0, 0, 0]
    assert assign(rows, a=(4, 3)) == [0, 0, 1]
    assert rows.account(1) == (0, 0)


def test_prompts_and_decodes_mix_in_one_batch():
    rows = table(a=0, b=5)
    assert assign(rows, b=(5, 1), x=(0, 3), a=(0, 2)) == [2, 0, 0, 0, 1, 1]


def test_positions_of_a_preempted_request_are_counted_as_repeated():
    rows = table(a=2)
    for chunk in ((0, 3), (3, 1), (4, 1)):
        assign(rows, a=chunk)
    assert rows.admit("a", {"row": 1, "start": 2, "edits": [[0, 1, 0.5]]}) is None
    assert assign(rows, a=(0, 6)) == [0, 0, 1, 1, 1, 1]
    assert rows.account(1) == (3, 0)


def test_positions_taken_from_a_cache_are_counted_as_skipped():
    rows = table(a=0)
    assert assign(rows, a=(4, 2)) == [1, 1]
    assert rows.account(1) == (0, 4)


def test_a_row_starts_afresh_with_its_next_request():
    rows = table(a=0)
    assign(rows, a=(0, 2))
    rows.release(["a"])
    assert rows.admit("b", {"row": 1, "start": 1, "edits": [[1, 3, -2.0]]}) == 1
    assert rows.slots[:, 1].tolist() == [0, 3]
    assert rows.coefficients[:, 1].tolist() == [0.0, -2.0]
    assert assign(rows, a=(0, 2), b=(0, 2)) == [0, 0, 0, 1]


def test_which_tokens_are_edited_at_which_layer():
    rows = table(a=0, b=0)
    rows.admit("c", {"row": 3, "start": 0, "edits": [[1, 1, 1.0]]})
    assert rows.edited(np.array([0, 1, 3, 2])).tolist() == [[False, True, False, True], [False, False, True, False]]
    assert rows.edited(np.array([], dtype=np.int64)).shape == (2, 0)
