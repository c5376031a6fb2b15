"""What a replica says about itself, to holders of the token and in manifests: its code, clock, disk and GPUs."""

import shutil
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from poolbench import __version__
from poolbench.steps import steps_version

#: One folder per GPU; containers that may use a GPU have it too.
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def about_replica() -> dict[str, Any]:
    """Return the version, clock, free disk space and GPUs of this replica, which `poolbench-driver doctor` checks."""
    return {
        "version": __version__,
        "steps": steps_version(),
        "time_s": round(time.time(), 3),
        "disk_free_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        "gpus_on_node": num_gpus(),
        "gpus_assigned": len(assigned_gpus()),
    }


def num_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine or container."""
    return sum(1 for device in Path("/dev").glob("nvidia[0-9]*") if device.name.removeprefix("nvidia").isdecimal())


def assigned_gpus() -> list[str]:
    """Return the indices of the GPUs that Ray assigned to this process. Outside of Ray, the list is empty."""
    ray = sys.modules.get("ray")  # a process that has not imported it is none of Ray's
    return [str(index) for index in ray.get_gpu_ids()] if ray is not None and ray.is_initialized() else []


@cache
def accelerator() -> str:
    """Return the model of the machine's first GPU, such as `NVIDIA H100 80GB HBM3`, or "" without a GPU.

    The name is read from the file system, because a library that asks the driver would occupy memory of the GPU.
    """
    with suppress(OSError):
        for path in sorted(_NVIDIA.glob("*/information")):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Model":
                    return value.strip()
    return ""
