"""How far a worker is: a page of memory that its parent reads, also after the worker has crashed."""

import mmap
import struct
from pathlib import Path

_FORMAT = struct.Struct("=qq")


class Progress:
    """Target and number of the case that is being read; (-1, -1) before the first and after the last one."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(_FORMAT.pack(-1, -1))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), _FORMAT.size)

    def set(self, target: int, number: int) -> None:
        """Record the case."""
        self._page[: _FORMAT.size] = _FORMAT.pack(target, number)

    def get(self) -> tuple[int, int]:
        """Return the case."""
        target, number = _FORMAT.unpack(self._page[: _FORMAT.size])
        return target, number
