"""Wall time, device time and peak memory of a stretch of work."""

import contextlib
import time
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Meter:
    """A stopwatch that measures wall time, device time and peak memory per lap."""

    def __init__(self) -> None:
        self._device_s: float | None = None
        self._peak_bytes: int | None = None
        self._start()

    def report(self, *, device_s: float | None = None, peak_bytes: int | None = None) -> None:
        """Add seconds of a device, and the peak of its memory, to the current lap."""
        if device_s is not None:
            self._device_s = (self._device_s or 0.0) + device_s
        if peak_bytes is not None:
            self._peak_bytes = max(self._peak_bytes or 0, peak_bytes)

    def lap(self) -> dict[str, Any]:
        """End the lap and return `wall_s`, `device_s` and `peak_bytes`.

        If no device reported, these are CPU seconds and the peak of resident memory of this process.
        """
        cpu_s = time.process_time() - self._cpu_s
        measured = {
            "wall_s": round(time.perf_counter() - self._wall_s, 4),
            "device_s": round(cpu_s if self._device_s is None else self._device_s, 4),
            "peak_bytes": peak_resident_bytes() if self._peak_bytes is None else self._peak_bytes,
        }
        self._start()
        return measured

    def _start(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = time.process_time()
        self._device_s = None
        self._peak_bytes = None
        with contextlib.suppress(OSError):  # a kernel without it reports the peak of the process's life
            _CLEAR_REFS.write_text("5")


def peak_resident_bytes() -> int:
    """Return the highest resident memory of this process since the last lap began."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
