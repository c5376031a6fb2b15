"""Traces of tasks and HTTP requests for an OpenTelemetry collector; off unless POOLBENCH_TRACES names one.

While they are off, a span is an empty context manager and OpenTelemetry is not imported. Spans hold ids and kinds.
They never hold the message of an exception, which may quote a passage.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from poolbench.settings import TraceSettings
from poolbench.telemetry.ids import TRACE, identified

#: Header of W3C Trace Context, in messages and HTTP requests.
TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_EXPORT_TIMEOUT_S = 5
_PATH = "/v1/traces"


class _Process:
    """The tracer of this process; None while traces are off."""

    tracer: Any = None
    provider: Any = None


def start_tracing(service: str) -> bool:
    """Send the spans of this process to the collector that POOLBENCH_TRACES names. Return whether it names a collector.

    The provider does not become the global provider, because Ray and vLLM use the global provider for themselves.
    """
    endpoint = TraceSettings.load().traces
    if not endpoint or _Process.tracer is not None:
        return bool(endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}{_PATH}", timeout=_EXPORT_TIMEOUT_S)
    provider = TracerProvider(resource=Resource.create({"service.name": f"poolbench-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _Process.provider, _Process.tracer = provider, provider.get_tracer("poolbench")
    return True


def stop_tracing() -> None:
    """Send the remaining spans, and turn tracing off."""
    provider, _Process.provider, _Process.tracer = _Process.provider, None, None
    if provider is not None:
        provider.shutdown()


def span(name: str, **attributes: str) -> AbstractContextManager[None]:
    """Return a context manager for a span of the current trace. An exception marks the span as failed, by type only."""
    return nullcontext() if _Process.tracer is None else _recorded(name, attributes)


def continued(traceparent: str | None) -> AbstractContextManager[None]:
    """Return a context manager in which spans belong to the trace of another process. A malformed header is ignored."""
    valid = _Process.tracer is not None and is_traceparent(traceparent)
    return _attached({TRACEPARENT: str(traceparent)}) if valid else nullcontext()


def trace_headers() -> dict[str, str]:
    """Return the header that passes the current span to another process. Without tracing, the result is empty."""
    if _Process.tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return {name: value for name, value in headers.items() if name == TRACEPARENT}


def is_traceparent(value: object) -> bool:
    """Return whether a value is a header of version 00."""
    return isinstance(value, str) and _TRACEPARENT.fullmatch(value) is not None


@contextmanager
def _recorded(name: str, attributes: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry.trace import Status, StatusCode

    started = _Process.tracer.start_as_current_span(
        name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
    )
    with started as current:
        try:
            with identified(**{TRACE: f"{current.get_span_context().trace_id:032x}"}):
                yield
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


@contextmanager
def _attached(headers: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(token)
