"""Wall clocks that jump: a library that is preloaded into the Python processes of one machine."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.cc")
_NUM_BYTES = 8  # of the library's `long long`


@dataclass(frozen=True)
class Clock:
    """The clock of the processes that were started with its environment."""

    library: Path
    file: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return what a process needs to have this clock."""
        return {"LD_PRELOAD": str(self.library), "TEST_CLOCK": str(self.file)}

    def jump(self, seconds: int) -> None:
        """Set by how much the clock is wrong; processes that run see it at once."""
        with self.file.open("r+b") as file:
            file.write(seconds.to_bytes(_NUM_BYTES, "little", signed=True))


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "clock.so"
    command = ["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def clock(library: Path, file: Path) -> Clock:
    """Return a clock that is right."""
    file.write_bytes(bytes(_NUM_BYTES))
    return Clock(library, file)
