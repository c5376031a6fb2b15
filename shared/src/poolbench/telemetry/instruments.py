"""Counters, gauges and histograms with bounded labels, and the sink that receives what they record.

Each distinct set of label values is a time series of its own, which Prometheus keeps in memory. So a label never holds
an id, a key or a text: its values are listed, or their number is bounded.
"""

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

#: Value of a label in place of one that is not allowed.
OTHER = "other"
#: Distinct values of a label whose values are not listed.
MAX_VALUES = 64
_VALUE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
#: Ray exports every name with this prefix, and counters with this suffix.
_PREFIX, _COUNTER_SUFFIX = "ray_", "_total"
_LOG = logging.getLogger("poolbench.telemetry")


@dataclass(frozen=True)
class Label:
    """A dimension of an instrument."""

    name: str
    summary: str
    values: tuple[str, ...] = ()  # all values that it can have. Empty: the first `MAX_VALUES` names that are recorded.
    _seen: set[str] = field(default_factory=set, compare=False, repr=False)

    def bounded(self, value: str) -> str:
        """Return the value if the label allows it, else `other`."""
        if self.values:
            return value if value in self.values else OTHER
        if value in self._seen:
            return value
        if len(self._seen) >= MAX_VALUES or not _VALUE.fullmatch(value):
            return OTHER
        self._seen.add(value)
        return value


class Sink(Protocol):
    """A receiver of the values that instruments record."""

    def record(self, instrument: "Instrument", value: float, labels: Mapping[str, str]) -> None:
        """Record a value. This method is called in hot paths, and must neither wait nor raise."""


class _Process:
    """The sink of this process."""

    sink: Sink | None = None


def record_to(sink: Sink | None) -> Sink | None:
    """Send the recorded values of all instruments of this process to `sink`. Return the previous sink.

    With None, nothing is recorded.
    """
    before, _Process.sink = _Process.sink, sink
    return before


@dataclass(frozen=True)
class Instrument:
    """A quantity that the processes of a cluster record."""

    kind: ClassVar[str]

    name: str  # name for `ray.util.metrics`
    unit: str  # unit of its values, in words
    labels: tuple[Label, ...]  # dimensions; a recorded value has each of them
    summary: str  # what it measures

    @property
    def exported(self) -> str:
        """Return the instrument's name in Prometheus. The series of a histogram add `_bucket`, `_sum` and `_count`."""
        return f"{_PREFIX}{self.name}"

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of all time series in Prometheus."""
        return (self.exported,)

    def _record(self, value: float, labels: Mapping[str, str]) -> None:
        sink = _Process.sink
        if sink is None:
            return
        assert labels.keys() == {label.name for label in self.labels}, f"{self.name}: {sorted(labels)}"
        sink.record(self, value, {label.name: label.bounded(labels[label.name]) for label in self.labels})


@dataclass(frozen=True)
class Counter(Instrument):
    """A total that only grows."""

    kind = "counter"

    @property
    def exported(self) -> str:
        return f"{_PREFIX}{self.name}{_COUNTER_SUFFIX}"

    def add(self, amount: float = 1, /, **labels: str) -> None:
        """Add an amount. An amount of 0 is ignored."""
        if amount > 0:
            self._record(amount, labels)


@dataclass(frozen=True)
class Gauge(Instrument):
    """A value that goes up and down."""

    kind = "gauge"

    def set(self, value: float | None, /, **labels: str) -> None:
        """Set the present value. None, for an unknown value, records nothing."""
        if value is not None:
            self._record(value, labels)


@dataclass(frozen=True)
class Histogram(Instrument):
    """The distribution of values. Ray moves each value to the middle of its bucket, so that sums are approximate."""

    kind = "histogram"

    buckets: tuple[float, ...] = ()  # upper bounds, ascending

    @property
    def series(self) -> tuple[str, ...]:
        return tuple(f"{self.exported}_{part}" for part in ("bucket", "sum", "count"))

    def observe(self, value: float, /, **labels: str) -> None:
        """Add a value to the distribution."""
        self._record(value, labels)

    @contextmanager
    def timing(self, **labels: str) -> Iterator[None]:
        """Observe the seconds that the block takes, even if the block raises an error."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._record(time.perf_counter() - began, labels)


class RaySink:
    """Makes Ray's metrics as they are first used."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._failed = False

    def record(self, instrument: Instrument, value: float, labels: Mapping[str, str]) -> None:
        """Record a value. An error is logged once and not raised, because measurements must not stop work."""
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
    """If this process belongs to a Ray cluster, send the recorded values to Ray. Return whether it does."""
    import ray

    if ray.is_initialized():
        record_to(RaySink())
    return ray.is_initialized()
