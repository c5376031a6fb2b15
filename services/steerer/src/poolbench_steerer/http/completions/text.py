"""Token ids to text, piece by piece, ending at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "�"  # what a decoder writes for bytes that do not make a whole character yet
_CONTEXT = 6  # tokens before the undecided ones that are decoded with them: spaces depend on what stands before


class TextStream:
    """The text of a growing list of tokens; released text never changes.

    Attributes:
        text: The released text.
        stopped: Whether a stop string came; nothing after it is released.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._num_decided = 0  # tokens whose text is known
        self._held = ""  # decided text that may be the beginning of a stop string
        self.text = ""
        self.stopped = False

    def push(self, token_ids: Sequence[int]) -> None:
        """Add tokens."""
        for token in token_ids:
            if self.stopped:
                return
            self._ids.append(token)
            self._release(self._decided(final=False), final=False)

    def finish(self) -> None:
        """Release what was held back."""
        if not self.stopped:
            self._release(self._decided(final=True), final=True)

    def _decided(self, final: bool) -> str:
        start = max(0, self._num_decided - _CONTEXT)
        before = self._decode(self._ids[start : self._num_decided])
        whole = self._decode(self._ids[start:])
        if whole.endswith(_REPLACEMENT) and not final:
            return ""
        self._num_decided = len(self._ids)
        return whole[len(before) :]

    def _release(self, added: str, final: bool) -> None:
        held = self._held + added
        matches = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if matches:
            self.text += held[: min(matches)[0]]
            self._held, self.stopped = "", True
            return
        keep = 0 if final else _open_end(held, self._stops)
        self.text += held[: len(held) - keep]
        self._held = held[len(held) - keep :]


def _open_end(text: str, stops: Sequence[str]) -> int:
    """Return length of the longest end of `text` that a stop string begins with."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
