"""Peak memory of the protocol in a process of its own, against the size of its vectors."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import reports_memory, reset_peak, resident_bytes

from poolbench_prober.solver.fits import fit_folds, fit_probes
from probing.data import Protocol


def growth(work: Protocol) -> dict[str, Any] | None:
    """Return the growth of the resident set while all probes are fitted; None if the system does not report it."""
    if not reports_memory():
        return None
    with tempfile.TemporaryDirectory() as folder:
        for name in ("vectors_ND", "labels_NK", "c_K", "folds"):
            np.save(Path(folder) / f"{name}.npy", getattr(work, name))
        command = [sys.executable, "-c", f"from probing.memory import child; child({folder!r})"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    figures = json.loads(done.stdout)
    return figures | {"input_bytes": work.vectors_ND.nbytes, "ratio": figures["growth_bytes"] / work.vectors_ND.nbytes}


def child(folder: str) -> None:
    """Load the protocol, fit a small part (so that libraries are loaded), then all of it, and print the growth."""
    vectors, labels, c_values, folds = (
        np.load(Path(folder) / f"{name}.npy") for name in ("vectors_ND", "labels_NK", "c_K", "folds")
    )
    fit_probes(vectors[:64, :16], labels[:64], c_values)
    before = reset_peak()
    fit_folds(vectors, labels, c_values, [np.flatnonzero(folds != fold) for fold in np.unique(folds)])
    print(json.dumps({"growth_bytes": resident_bytes("VmHWM") - before, "before_bytes": before}))
