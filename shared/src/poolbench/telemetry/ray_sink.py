"""Send what instruments record to Ray, whose agent on each node exports it for Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from poolbench.telemetry.instruments import Counter, Gauge, Histogram, Instrument, record_to

_LOG = logging.getLogger("poolbench.telemetry")


class RaySink:
    """Makes Ray's metrics as they are first used."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._failed = False

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """Record one value. An error is logged once: measurements must not stop work."""
        try:
            metric = self._metrics.get(instrument.name) or self._make(instrument)
            if isinstance(instrument, Counter):
                metric.inc(value, tags=dict(labels))
            elif isinstance(instrument, Gauge):
                metric.set(value, tags=dict(labels))
            else:
                metric.observe(value, tags=dict(labels))
        except Exception as error:
            if not self._failed:
                self._failed = True
                _LOG.warning("%s cannot be recorded: %s: %s", instrument.name, type(error).__name__, error)

    def _make(self, instrument: Instrument) -> Any:
        from ray.util import metrics

        common = (instrument.name, instrument.summary)
        keys = tuple(label.name for label in instrument.labels)
        with self._lock:
            if instrument.name not in self._metrics:
                if isinstance(instrument, Histogram):
                    metric: Any = metrics.Histogram(*common, boundaries=list(instrument.buckets), tag_keys=keys)
                else:
                    kind = metrics.Counter if isinstance(instrument, Counter) else metrics.Gauge
                    metric = kind(*common, tag_keys=keys)
                self._metrics[instrument.name] = metric
            return self._metrics[instrument.name]


def record_to_ray() -> bool:
    """Send what this process records to Ray if it is a process of a Ray cluster; return whether it is."""
    import ray

    if ray.is_initialized():
        record_to(RaySink())
    return ray.is_initialized()
