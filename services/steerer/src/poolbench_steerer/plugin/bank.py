"""The vectors in device slots: registered once, evicted least recently used, never while in use."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from poolbench_steerer.errors import BankFullError, NoEffectError, StrengthError, UnknownVectorError, VectorError
from poolbench_steerer.plugin.spec import Edit, Steering

#: Lengths that a vector may have. Their squares are computed in float32, and must neither vanish nor overflow.
MIN_LENGTH, MAX_LENGTH = 1e-15, 1e15
#: Largest change of an element of a state, summed over the edits of a request.
MAX_CHANGE = 1e12
#: The same in float16, whose largest number is 65,504: half of that, so that the model's own states have room.
MAX_CHANGE_FLOAT16 = 2.0**15
#: Largest share of a projection that an erasure may remove; 1 removes all of it.
MAX_SHARE = 100.0


@dataclass
class Entry:
    """One registered vector."""

    vector_id: str
    slot: int
    vector: np.ndarray = field(repr=False)  # float32 [width]
    users: int = 0
    confidential: bool = False  # of a sensitive concept: neither listed nor steered with by request

    @cached_property
    def length(self) -> float:
        """Return the Euclidean norm."""
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    @cached_property
    def peak(self) -> float:
        """Return the largest element in size."""
        return float(np.abs(self.vector).max())


def vector_id(vector: np.ndarray) -> str:
    """Return the id of a vector, a hash of its little-endian float32 bytes."""
    return hashlib.sha256(np.ascontiguousarray(vector, dtype="<f4").tobytes()).hexdigest()[:32]


class VectorBank:
    """Bookkeeping of the device bank. Slot 0 is "no vector". Host copies fill a restarted engine.

    Only the event loop of the engine may change the bank. Other threads may read its properties.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # least recently used first
        self._free = list(range(capacity, 0, -1))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return the registered vectors that are not confidential, least recently used first."""
        return tuple(entry for entry in self.resident if not entry.confidential)

    @property
    def resident(self) -> tuple[Entry, ...]:
        """Return all that the device holds."""
        return tuple(self._entries.values())  # a copy: health checks read it in another thread

    @property
    def num_in_use(self) -> int:
        """Return vectors that a running request refers to."""
        return sum(entry.users > 0 for entry in self.resident)

    def register(self, vectors: Sequence[np.ndarray], *, confidential: bool = False) -> tuple[list[str], list[Entry]]:
        """Give every vector a slot. All vectors of one call stay resident together.

        A confidential vector steers toward a sensitive concept. If a client registers an equal vector as not
        confidential, the vector is no longer confidential, because the client has it anyway.

        Returns:
            The ids in order, and the entries that are new and must be copied to the device.

        Raises:
            VectorError: A vector has a wrong width or a value that is not finite, is zero, or is too long.
            NoEffectError: A vector is too short to change a state.
            BankFullError: The call needs more slots than can be freed. Then nothing is registered.
        """
        arrays = [self._checked(vector, index) for index, vector in enumerate(vectors)]
        ids = [vector_id(array) for array in arrays]
        arrays_by_id = dict(zip(ids, arrays, strict=True))
        missing = [key for key in arrays_by_id if key not in self._entries]
        self._make_room(len(missing), keep=arrays_by_id)
        for key in arrays_by_id:
            if key in self._entries:
                self._entries.move_to_end(key)
                self._entries[key].confidential &= confidential
        added = [Entry(key, self._free.pop(), arrays_by_id[key], confidential=confidential) for key in missing]
        self._entries.update((entry.vector_id, entry) for entry in added)
        return ids, added

    def entry(self, key: str, *, confidential: bool = False) -> Entry:
        """Return the entry of an id.

        Raise UnknownVectorError for an unknown id, or for a confidential entry without `confidential`.
        """
        try:
            entry = self._entries[key]
            if entry.confidential and not confidential:
                raise KeyError(key)
            return entry
        except KeyError:
            raise UnknownVectorError(
                f"vector {key!r} is not registered ({len(self)} of {self.capacity} slots used); "
                "POST it to .../vectors first: the least recently used are evicted"
            ) from None

    @contextmanager
    def in_use(self, keys: Iterable[str], *, confidential: bool = False) -> Iterator[dict[str, int]]:
        """Protect vectors from eviction within the block, and yield their slots by id."""
        entries = [self.entry(key, confidential=confidential) for key in set(keys)]
        for entry in entries:
            entry.users += 1
            self._entries.move_to_end(entry.vector_id)
        try:
            yield {entry.vector_id: entry.slot for entry in entries}
        finally:
            for entry in entries:
                entry.users -= 1

    def _make_room(self, needed: int, keep: Iterable[str]) -> None:
        protected_ids = set(keep)
        shortage = needed - len(self._free)
        if shortage <= 0:
            return
        idle = [entry for entry in self._entries.values() if entry.users == 0 and entry.vector_id not in protected_ids]
        if len(idle) < shortage:
            raise BankFullError(
                f"{needed} new vectors need slots, but only {len(self._free) + len(idle)} of {self.capacity} "
                "are free or idle; send fewer at a time or raise bank_slots"
            )
        for entry in idle[:shortage]:
            del self._entries[entry.vector_id]
            self._free.append(entry.slot)

    def _checked(self, vector: np.ndarray, index: int) -> np.ndarray:
        array = np.ascontiguousarray(vector, dtype=np.float32)
        if array.shape != (self.width,):
            raise VectorError(f"vector {index} has shape {array.shape}; this model's hidden width is {self.width}")
        if not np.isfinite(array).all():
            raise VectorError(
                f"vector {index} holds {np.count_nonzero(~np.isfinite(array))} values that are not finite"
            )
        if not array.any():
            raise VectorError(f"vector {index} is zero: steering with it would change nothing")
        length = float(np.linalg.norm(array.astype(np.float64)))
        if length > MAX_LENGTH:
            raise VectorError(f"vector {index} has length {length:.3g}, at most {MAX_LENGTH:g} is taken: scale it down")
        if length < MIN_LENGTH:
            raise NoEffectError(
                f"vector {index} has length {length:.3g} and is too small to change any state; at least "
                f"{MIN_LENGTH:g} is needed: scale it up"
            )
        return array


def max_change(dtype: str) -> float:
    """Return the bound for a model whose states have this type, such as `bfloat16`."""
    return MAX_CHANGE_FLOAT16 if dtype == "float16" else MAX_CHANGE


def check_change(steering: Steering, entry_of: Callable[[str], Entry], dtype: str) -> None:
    """Raise StrengthError, with the size and the bound, for edits that could make a state overflow.

    A change that is not finite in the model's number type, or too large for its norms, would break the states of the
    request. The bounds are far above any use: median residual norms are about 1 to 1,000, those of attention sinks up
    to some 100,000.
    """
    changes = {edit: _change(edit, entry_of(edit.vector_id)) for edit in steering.edits}
    # An addition that preserves the norm is computed in float32, and leaves the state as large as it was.
    stored = sum(change for edit, change in changes.items() if edit.operation != "add_preserving_norm")
    for size, bound, computed in ((stored, max_change(dtype), dtype), (sum(changes.values()), MAX_CHANGE, "float32")):
        if not size <= bound:
            raise StrengthError(
                f"the edits change an element of a state by up to {size:.3g} (sum of |alpha| times the largest "
                f"element of the vector); at most {bound:.3g} can be computed safely in {computed}: lower alpha or "
                "strength, or scale the vector down"
            )
    share = max((abs(edit.alpha) for edit in steering.edits if edit.operation == "erase"), default=0.0)
    if share > MAX_SHARE:
        raise StrengthError(
            f"erase has alpha {share:.3g}; at most {MAX_SHARE:.0f} is taken: alpha is the share of the projection "
            "to remove, and 1 removes all of it"
        )


def _change(edit: Edit, entry: Entry) -> float:
    """Return the most that an edit adds to an element, apart from the state's own part."""
    if edit.operation == "erase":
        return 0.0
    scale = entry.length if edit.operation == "clamp" else 1.0
    return abs(edit.alpha) * entry.peak / scale
