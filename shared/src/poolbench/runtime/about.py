"""What a replica says about itself to holders of the token: its code, clock, disk and GPUs."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from typing import Any

from poolbench import __version__
from poolbench.steps import steps_version
from poolbench.telemetry.gpu import num_gpus


def about_replica() -> dict[str, Any]:
    """Return version, clock, free disk and GPUs. `poolbench-driver doctor` compares them with its own."""
    return {
        "version": __version__,
        "steps": steps_version(),
        "time_s": round(time.time(), 3),
        "disk_free_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        "gpus_on_node": num_gpus(),
        "gpus_assigned": len(assigned_gpus()),
    }


def assigned_gpus() -> list[str]:
    """Return the indices of the GPUs that Ray gave to this process; none outside of Ray."""
    ray = sys.modules.get("ray")  # a process that has not imported it is none of Ray's
    return [str(index) for index in ray.get_gpu_ids()] if ray is not None and ray.is_initialized() else []
