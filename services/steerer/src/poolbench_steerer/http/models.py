"""The model that a request over HTTP names."""

from __future__ import annotations

from poolbench.config import ModelRef, resolve_model
from poolbench.runtime.folders import requested_model
from poolbench_steerer.host import EngineHost


def model_of(host: EngineHost, name: str | None) -> ModelRef:
    """Return the model of a request, by default the configured one.

    Raises:
        UnknownModelError: No preset or id has this name.
        ModelError: The name is a folder that requests may not name.
    """
    configured = host.config.model
    return resolve_model(configured) if name in (None, "", configured) else requested_model(name)
