"""End the engine process with the replica that started it, even if the replica was killed."""

from __future__ import annotations

import os
import threading
import time

import psutil

from poolbench.settings import ProcessSettings


def end_with_owner(interval_s: float = 1.0) -> None:
    """End this process when the replica that started the engine is gone.

    vLLM's engine core outlives a replica killed by SIGKILL. The replica may already be gone here, so its id comes from
    the environment, not from this process's parent.
    """
    owner_id = ProcessSettings.load().engine_owner or os.getppid()

    def watch() -> None:
        try:
            owner = psutil.Process(owner_id)
            while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
                time.sleep(interval_s)
        finally:  # also when the owner was gone before this began
            os._exit(1)

    threading.Thread(target=watch, name="owner-watch", daemon=True).start()
