"""The accelerator of this machine, as the NVIDIA driver names it."""

from contextlib import suppress
from functools import cache
from pathlib import Path

#: One folder per GPU; containers that may use a GPU have it too.
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@cache
def accelerator() -> str:
    """Return the model of the machine's first GPU, such as `NVIDIA H100 80GB HBM3`; "" without one.

    The file system is read, because a library that asks the driver would occupy memory of the GPU.
    """
    with suppress(OSError):
        for path in sorted(_NVIDIA.glob("*/information")):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Model":
                    return value.strip()
    return ""
