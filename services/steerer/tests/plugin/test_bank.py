"""The bank of vectors: ids, slots, and what is evicted."""

import numpy as np
import pytest

from poolbench_steerer.errors import BankFullError, NoEffectError, UnknownVectorError, VectorError
from poolbench_steerer.plugin.bank import Entry, VectorBank, vector_id

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
