"""Rows of requests: whose token is whose, what is steered, and what is counted as repeated or skipped."""

import numpy as np

from poolbench_steerer.plugin.rows import GENERAL, NOTHING, ONE_ADDITION, RowTable

ADD, CLAMP = 1, 3
TWIN, PLAIN = 8, 16  # from a row of ``table`` to its copies: computed again, and not steered


def wire(row: int, start: int | None, edits: list, stop: int | None = None) -> dict:
    return {"row": row, "start": start, "stop": stop, "edits": edits}


def table(**starts: int) -> RowTable:
    """A table with one request a keyword, rows 1, 2, ... in order, each with an edit at layer 0."""
    rows = RowTable(num_layers=2, num_rows=8, num_edits=2)
    for row, (request, start) in enumerate(starts.items(), start=1):
        rows.admit(request, wire(row, start, [[0, row, ADD, 0.5 * row]]))
    return rows


def assign(rows: RowTable, **chunks: tuple[int, int]) -> list[int]:
    """Assigns a batch of (first position, number of tokens) by request."""
    lengths = [length for _, length in chunks.values()]
    starts = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    return rows.assign(list(chunks), starts, np.array([begin for begin, _ in chunks.values()])).tolist()


def test_prompts_are_steered_at_their_last_position_and_every_decoded_token():
    assert assign(table(a=3, b=1), a=(0, 4), b=(0, 2)) == [*[1 + PLAIN] * 3, 1, 2 + PLAIN, 2]
    rows = table(a=3, b=1)
    assign(rows, a=(0, 4), b=(0, 2))
    assert assign(rows, b=(2, 1), x=(9, 1), a=(4, 1)) == [2, 0, 1]
    rows = table(a=0, b=5)
    assert assign(rows, b=(5, 1), x=(0, 3), a=(0, 2)) == [2, 0, 0, 0, 1, 1]


def test_chunks_of_a_prompt_are_steered_in_the_chunk_that_holds_the_position():
    rows = table(a=6)
    assert assign(rows, a=(0, 4)) == [1 + PLAIN] * 4
    assert assign(rows, a=(4, 3)) == [1 + PLAIN, 1 + PLAIN, 1]
    assert rows.account(1) == (0, 0)


def test_positions_that_are_repeated_or_skipped_are_counted():
    rows = table(a=2)
    for chunk in ((0, 3), (3, 1), (4, 1)):
        assign(rows, a=chunk)
    assert rows.admit("a", wire(1, 2, [[0, 1, ADD, 0.5]])) is None
    assert assign(rows, a=(0, 6)) == [*[1 + PLAIN] * 2, *[1 + TWIN] * 3, 1]  # the twin steers alike and counts apart
    assert rows.account(1) == (3, 0)
    rows = table(a=0)
    assert assign(rows, a=(4, 2)) == [1, 1]
    assert rows.account(1) == (0, 4)


def test_a_row_starts_afresh_with_its_next_request():
    rows = table(a=0)
    assign(rows, a=(0, 2))
    rows.release(["a"])
    assert rows.admit("b", wire(1, 1, [[1, 3, ADD, -2.0]])) == 1
    assert rows.slots[:, 0, 1].tolist() == rows.slots[:, 0, 1 + 8].tolist() == [0, 3]
    assert rows.coefficients[:, 0, 1].tolist() == [0.0, -2.0]
    assert assign(rows, a=(0, 2), b=(0, 2)) == [0, 0, 1 + PLAIN, 1]


def test_prompt_positions_end_before_the_first_answer():
    rows = RowTable(num_layers=1, num_rows=4)
    rows.admit("a", wire(1, 0, [[0, 1, ADD, 1.0]], stop=5))
    assert assign(rows, a=(0, 3)) == [1, 1, 1]
    assert assign(rows, a=(3, 3)) == [1, 1, 1 + 2 * 4]
    assert assign(rows, a=(6, 1)) == [1 + 2 * 4]
    assert rows.account(1) == (0, 0)
    assert assign(rows, a=(2, 5)) == [1 + 4] * 3 + [1 + 2 * 4] * 2
    assert rows.account(1) == (3, 0)


def test_what_a_row_does_at_a_layer():
    rows = RowTable(num_layers=4, num_rows=4, num_edits=2)
    rows.admit("a", wire(2, 0, [[0, 1, ADD, 1.0], [1, 1, CLAMP, 0.0], [2, 1, ADD, 1.0], [2, 3, ADD, 2.0]]))
    assert rows.kinds[:, 2].tolist() == rows.kinds[:, 6].tolist() == [ONE_ADDITION, GENERAL, GENERAL, NOTHING]
    assert rows.slots[2, :, 2].tolist() == [1, 3]
    assert rows.operations[1, :, 2].tolist() == [CLAMP, 0]
    assert rows.kinds[:, [0, 1, 3]].any() is np.False_


def test_a_request_without_edits_owns_its_tokens_but_steers_none():
    rows = table(a=0)
    rows.admit("plain", wire(2, None, []))
    assert assign(rows, a=(0, 1), plain=(0, 3), other=(0, 1)) == [1, *[2 + PLAIN] * 3, 0]
    assert rows.kinds[:, [2, 2 + PLAIN, 1 + PLAIN]].tolist() == [[NOTHING] * 3] * 2
    assert not rows.operations[..., PLAIN:].any()
    assert rows.account(2) == (0, 0)
