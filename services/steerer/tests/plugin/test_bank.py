"""The bank, the cache and the rows: ids, slots, what is cleared, and whose token is whose."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from poolbench_steerer.errors import BankFullError, NoEffectError, UnknownVectorError, VectorError
from poolbench_steerer.plugin.bank import Entry, VectorBank, vector_id
from poolbench_steerer.plugin.rows import GENERAL, NOTHING, ONE_ADDITION, RowTable
from poolbench_steerer.plugin.runner import clear_blocks, new_blocks, prepare_clearing

EYE = np.eye(8, dtype=np.float32)


def test_same_bytes_are_one_vector_in_one_slot():
    bank = VectorBank(width=8, capacity=4)
    ids, added = bank.register([EYE[0], EYE[1], EYE[0].copy()])
    assert ids[0] == ids[2] == vector_id(EYE[0]) != ids[1]
    assert [entry.slot for entry in added] == [1, 2]
    assert bank.register([EYE[1]]) == ([ids[1]], [])


def test_the_id_depends_on_float32_values_only():
    assert vector_id(EYE[0].astype(np.float64)) == vector_id(EYE[0].astype(">f4"))


def test_slot_zero_is_never_given_away():
    bank = VectorBank(width=8, capacity=8)
    _, added = bank.register(list(EYE))
    assert sorted(entry.slot for entry in added) == list(range(1, 9))


def test_the_least_recently_used_is_evicted():
    bank = VectorBank(width=8, capacity=2)
    (first, second), _ = bank.register([EYE[0], EYE[1]])
    with bank.in_use([first]):
        pass
    _, (third,) = bank.register([EYE[2]])
    assert third.slot == 2
    bank.entry(first)
    with pytest.raises(UnknownVectorError, match="POST it to"):
        bank.entry(second)


def test_a_vector_in_use_is_never_evicted():
    bank = VectorBank(width=8, capacity=2)
    ids, _ = bank.register([EYE[0], EYE[1]])
    with bank.in_use(ids) as slots:
        assert slots == {ids[0]: 1, ids[1]: 2}
        with pytest.raises(BankFullError, match="bank_slots"):
            bank.register([EYE[2]])
        assert bank.num_in_use == 2
    bank.register([EYE[2]])
    assert bank.num_in_use == 0


def test_vectors_of_one_call_do_not_evict_each_other():
    bank = VectorBank(width=8, capacity=2)
    bank.register([EYE[0], EYE[1]])
    with pytest.raises(BankFullError):
        bank.register([EYE[1], EYE[2], EYE[3]])
    assert len(bank) == 2
    bank.register([EYE[1], EYE[2]])
    assert {entry.vector_id for entry in bank.entries} == {vector_id(EYE[1]), vector_id(EYE[2])}


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.ones(7), "hidden width is 8"),
        (np.array([np.nan] + [1.0] * 7), "1 values that are not finite"),
        (np.array([np.inf] * 2 + [1.0] * 6), "2 values that are not finite"),
        (np.zeros(8), "is zero"),
    ],
)
def test_unusable_vectors_are_refused_and_leave_nothing(vector, message):
    bank = VectorBank(width=8, capacity=4)
    with pytest.raises(VectorError, match=message):
        bank.register([EYE[0], vector])
    assert len(bank) == 0


def test_vectors_whose_squares_vanish_or_overflow_are_refused():
    bank = VectorBank(width=8, capacity=4)
    bank.register([1e-15 * EYE[0], 1e15 * EYE[1]])
    with pytest.raises(VectorError, match=r"length 1\.1e\+15, at most 1e\+15 is taken: scale it down"):
        bank.register([1.1e15 * EYE[0]])
    with pytest.raises(NoEffectError, match="length 9e-16 and is too small to change any state"):
        bank.register([9e-16 * EYE[0]])
    assert len(bank) == 2


def test_counts_may_be_read_while_the_engine_changes_the_bank(monkeypatch):
    """Health checks read in another thread. Here the bank changes at each entry that a reader looks at."""
    bank = VectorBank(width=8, capacity=8)
    bank.register([EYE[0], EYE[1]])
    others = iter(EYE[2:])

    class Changing(Entry):
        def __getattribute__(self, name):
            if name in ("users", "confidential") and (vector := next(others, None)) is not None:
                bank.register([vector])
            return super().__getattribute__(name)

    for entry in bank.resident:
        entry.__class__ = Changing
    assert bank.num_in_use == 0
    assert len(bank.entries) == len(bank.resident) - 2


#: Two groups of layers with blocks of 4 and 8 tokens, and one whose blocks hold no keys and values.
SIZES = [4, 8, None]


def scheduled(new: list[Any], running: list[tuple[str, Any, int]], resumed: set[str]) -> SimpleNamespace:
    ids, blocks, computed = (list(column) for column in zip(*running, strict=True)) if running else ([], [], [])
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=blocks, num_computed_tokens=count) for blocks, count in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=ids, new_block_ids=blocks, num_computed_tokens=computed, resumed_req_ids=resumed
        ),
    )


def test_a_new_request_gets_all_blocks_cleared_but_those_of_the_prefix_cache():
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 0)], [], set()), SIZES)) == [1, 2, 3, 4, 5]
    assert sorted(new_blocks(scheduled([(([1, 2, 3], [4, 5], [6]), 8)], [], set()), SIZES)) == [3, 5]


def test_a_running_request_gets_added_blocks_cleared_and_a_resumed_one_all_that_it_must_compute():
    running = [("a", ([7], [], []), 12), ("b", None, 3), ("c", ([1, 2, 3], [4, 5], [6]), 8)]
    assert sorted(new_blocks(scheduled([], running, {"c"}), SIZES)) == [3, 5, 7]


def test_clearing_touches_these_blocks_of_every_layer_only():
    caches = [torch.full((12, 2, 3), float("nan")), torch.full((6, 5), float("inf")), ["not a tensor"]]
    clear_blocks(caches, num_blocks=6, block_ids=[1, 4])  # the first layer has two small blocks in each block
    assert caches[0].view(6, -1).isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]
    assert caches[1].isfinite().all(dim=1).tolist() == [False, True, False, False, True, False]


def test_gpus_clear_with_vllms_own_kernel():
    """For most models vLLM sets it up only on request."""
    calls: list[str] = []
    runner = SimpleNamespace(_init_kv_zero_meta=lambda: calls.append("set up"), _zero_block_ids="vLLM's own")
    prepare_clearing(runner, 6, torch.device("cuda"))
    assert (calls, runner._zero_block_ids) == (["set up"], "vLLM's own")


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


def test_a_prompt_is_steered_at_its_last_position_only():
    assert assign(table(a=3, b=1), a=(0, 4), b=(0, 2)) == [*[1 + PLAIN] * 3, 1, 2 + PLAIN, 2]


def test_decoding_steers_every_token_of_steered_requests():
    rows = table(a=3, b=1)
    assign(rows, a=(0, 4), b=(0, 2))
    assert assign(rows, b=(2, 1), x=(9, 1), a=(4, 1)) == [2, 0, 1]


def test_chunks_of_a_prompt_are_steered_in_the_chunk_that_holds_the_position():
    rows = table(a=6)
    assert assign(rows, a=(0, 4)) == [1 + PLAIN] * 4
    assert assign(rows, a=(4, 3)) == [1 + PLAIN, 1 + PLAIN, 1]
    assert rows.account(1) == (0, 0)


def test_prompts_and_decodes_mix_in_one_batch():
    rows = table(a=0, b=5)
    assert assign(rows, b=(5, 1), x=(0, 3), a=(0, 2)) == [2, 0, 0, 0, 1, 1]


def test_positions_of_a_preempted_request_are_counted_as_repeated():
    rows = table(a=2)
    for chunk in ((0, 3), (3, 1), (4, 1)):
        assign(rows, a=chunk)
    assert rows.admit("a", wire(1, 2, [[0, 1, ADD, 0.5]])) is None
    assert assign(rows, a=(0, 6)) == [*[1 + PLAIN] * 2, *[1 + TWIN] * 3, 1]  # the twin steers alike and counts apart
    assert rows.account(1) == (3, 0)


def test_positions_taken_from_a_cache_are_counted_as_skipped():
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
