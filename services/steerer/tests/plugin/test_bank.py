"""The bank of vectors: ids, slots, what is evicted, and bounds of changes for every operation and number type."""

import numpy as np
import pytest

from poolbench_steerer.errors import BankFullError, NoEffectError, StrengthError, UnknownVectorError, VectorError
from poolbench_steerer.plugin.bank import Entry, VectorBank, check_change, vector_id
from poolbench_steerer.plugin.spec import Edit, Steering

EYE = np.eye(8, dtype=np.float32)


def test_same_float32_bytes_are_one_vector_in_one_slot():
    bank = VectorBank(width=8, capacity=4)
    ids, added = bank.register([EYE[0], EYE[1], EYE[0].copy()])
    assert ids[0] == ids[2] == vector_id(EYE[0]) != ids[1]
    assert [entry.slot for entry in added] == [1, 2]
    assert bank.register([EYE[1]]) == ([ids[1]], [])
    assert vector_id(EYE[0].astype(np.float64)) == vector_id(EYE[0].astype(">f4"))


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


def test_a_vector_in_use_or_of_the_same_call_is_never_evicted():
    bank = VectorBank(width=8, capacity=2)
    ids, _ = bank.register([EYE[0], EYE[1]])
    with bank.in_use(ids) as slots:
        assert slots == {ids[0]: 1, ids[1]: 2}
        with pytest.raises(BankFullError, match="bank_slots"):
            bank.register([EYE[2]])
        assert bank.num_in_use == 2
    bank.register([EYE[2]])
    assert bank.num_in_use == 0
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


#: Largest element 4, length 5.
VECTOR = np.array([3.0, -4.0], dtype=np.float32)
TYPES = ("float32", "bfloat16", "float16")


def checked(dtype: str, *edits: Edit) -> None:
    check_change(Steering(edits), lambda key: Entry(key, 1, VECTOR * (1e10 if key == "long" else 1.0)), dtype)


@pytest.mark.parametrize(
    ("dtype", "operation", "key", "largest"),
    [
        ("float16", "add", "v", 2**15 / 4),
        ("float16", "clamp", "v", 2**15 * 5 / 4),
        ("float16", "add_preserving_norm", "long", 25.0),
        ("float16", "erase", "v", 100.0),
        ("bfloat16", "add", "long", 25.0),
        ("float32", "add", "long", 25.0),
        ("float32", "add_preserving_norm", "long", 25.0),
        ("float32", "erase", "long", 100.0),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_change_is_taken_and_a_larger_one_refused(dtype, operation, key, largest, sign):
    checked(dtype, Edit(key, 0, sign * largest * 0.999, operation))
    with pytest.raises(StrengthError, match=r"at most (3\.28e\+04|1e\+12|100) "):
        checked(dtype, Edit(key, 0, sign * largest * 1.001, operation))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_changes_of_all_edits_of_a_request_count_together(dtype):
    half = 0.6 * (2**15 if dtype == "float16" else 1e12) / 4e10
    edits = Edit("long", 0, half), Edit("long", 3, -half)
    for edit in edits:
        checked(dtype, edit)
    with pytest.raises(StrengthError, match="sum of"):
        checked(dtype, *edits)


def test_clamps_in_wide_types_are_never_too_large():
    """The vector's length does not count, and coefficients end at 1e8."""
    checked("float32", Edit("long", 0, 1e8, "clamp"))
