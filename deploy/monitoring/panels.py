"""The panels of the Grafana dashboards, as queries over the instruments of PoolBench and the metrics of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poolbench.telemetry.catalog import (
    BATCH_SIZE,
    BROKER_ERRORS,
    BROKER_SECONDS,
    DEAD_LETTERS,
    GPU_MEMORY_BYTES,
    GPU_UTILIZATION,
    HTTP_REFUSALS,
    LEASE_LOSSES,
    QUEUE_MESSAGES,
    QUEUE_OLDEST_SECONDS,
    STORE_BYTES,
    STORE_ERRORS,
    STORE_RETRIES,
    STORE_SECONDS,
    TASK_SECONDS,
    TASK_WAIT_SECONDS,
    TASKS,
    TASKS_RUNNING,
    TOKENS,
)
from poolbench.telemetry.instruments import Counter, Gauge, Histogram

RANGE = "$__rate_interval"
SERVICE = 'service="$service"'


@dataclass(frozen=True)
class Panel:
    """One graph: queries with their legends, and the unit of the axis in Grafana's words."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stat: bool = False  # the latest value as a number


def rate(counter: Counter, by: str = "", where: str = "") -> str:
    """Return the query of a counter's growth per second."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({counter.exported}{_selected(where)}[{RANGE}]))"


def quantile(q: float, histogram: Histogram, by: str = "", where: str = "") -> str:
    """Return the query of a quantile."""
    labels = ", ".join(filter(None, ["le", by]))
    buckets = f"{histogram.exported}_bucket{_selected(where)}"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({buckets}[{RANGE}])))"


def largest(gauge: Gauge, by: str, where: str = "") -> str:
    """Return the query of the largest of a gauge's values: several proxies measure the same queue."""
    return f"max by ({by}) ({gauge.exported}{_selected(where)})"


def _selected(where: str) -> str:
    return f"{{{where}}}" if where else ""


def _one(title: str, unit: str, query: str, legend: str, *, stat: bool = False) -> Panel:
    return Panel(title, unit, ((query, legend),), stat)


def _quantiles(title: str, unit: str, histogram: Histogram, by: str = "", where: str = "") -> Panel:
    legend = f"{{{{{by}}}}} " if by else ""
    levels = ((0.5, "median"), (0.95, "95 %"))
    return Panel(title, unit, tuple((quantile(q, histogram, by, where), f"{legend}{name}") for q, name in levels))


_QUEUES = (
    _one("Waiting messages", "short", largest(QUEUE_MESSAGES, "service"), "{{service}}"),
    _one("Age of the oldest message", "s", largest(QUEUE_OLDEST_SECONDS, "service"), "{{service}}"),
)
_TOKENS = _one("Tokens per second", "short", rate(TOKENS, "service, tokens"), "{{service}} {{tokens}}")

OVERVIEW: Sequence[Panel] = (
    _one(
        "Healthy replicas", "short", "sum by (deployment) (ray_serve_deployment_replica_healthy)", "{{deployment}}",
        stat=True,
    ),
    _one("Dead letters", "short", largest(DEAD_LETTERS, "service"), "{{service}}", stat=True),
    *_QUEUES,
    _one("Deliveries of tasks per second", "short", rate(TASKS, "outcome"), "{{outcome}}"),
    _TOKENS,
    Panel(
        "HTTP requests per second", "reqps",
        (
            (f"sum by (application) (rate(ray_serve_num_http_requests_total[{RANGE}]))", "{{application}}"),
            (f"sum(rate(ray_serve_num_http_error_requests_total[{RANGE}]))", "errors"),
            (rate(HTTP_REFUSALS, "code"), "refused: {{code}}"),
        ),
    ),
    _one(
        "Latency of HTTP requests, 95 %", "ms",
        f"histogram_quantile(0.95, sum by (le, application) (rate(ray_serve_http_request_latency_ms_bucket[{RANGE}])))",
        "{{application}}",
    ),
    _one("Object store, 95 %", "s", quantile(0.95, STORE_SECONDS, "operation"), "{{operation}}"),
    _one("Broker, 95 %", "s", quantile(0.95, BROKER_SECONDS, "operation"), "{{operation}}"),
    Panel(
        "Errors per second", "short",
        (
            (rate(STORE_ERRORS, "operation, code"), "store {{operation}}: {{code}}"),
            (rate(STORE_RETRIES), "store: sent again"),
            (rate(BROKER_ERRORS, "operation"), "broker {{operation}}"),
            (rate(LEASE_LOSSES), "leases lost"),
        ),
    ),
    _one("CPU of the nodes", "percent", "ray_node_cpu_utilization", "{{instance}}"),
    _one("Memory of the nodes in use", "bytes", "ray_node_mem_used", "{{instance}}"),
    _one("Free disk of the nodes", "bytes", "ray_node_disk_free", "{{instance}}"),
    _one("Load of the GPUs", "percentunit", largest(GPU_UTILIZATION, "service, gpu, instance"), "{{service}} {{gpu}}"),
    _one("Memory of the GPUs", "bytes", largest(GPU_MEMORY_BYTES, "service, gpu, instance"), "{{service}} {{gpu}}"),
)  # fmt: skip

RUN: Sequence[Panel] = (
    _one("Tasks done per second", "short", rate(TASKS, "kind", 'outcome="done"'), "{{kind}}"),
    _one(
        "Deliveries that did not succeed, per second", "short",
        rate(TASKS, "kind, outcome", 'outcome=~"failed|retried|refused|cancelled"'), "{{kind}} {{outcome}}",
    ),
    _one("Tasks in work", "short", f"sum by (service) ({TASKS_RUNNING.exported})", "{{service}}"),
    *_QUEUES,
    _quantiles("Time until work begins", "s", TASK_WAIT_SECONDS, "service"),
    _one("Time of tasks, median", "s", quantile(0.5, TASK_SECONDS, "kind"), "{{kind}}"),
    _one("Time of tasks, 95 %", "s", quantile(0.95, TASK_SECONDS, "kind"), "{{kind}}"),
    _TOKENS,
    _one("Bytes of the object store per second", "Bps", rate(STORE_BYTES, "operation"), "{{operation}}"),
)  # fmt: skip

ONE_SERVICE: Sequence[Panel] = (
    _one(
        "Healthy replicas", "short", 'sum(ray_serve_deployment_replica_healthy{deployment="$service"})', "replicas",
        stat=True,
    ),
    _one("Dead letters", "short", largest(DEAD_LETTERS, "service", SERVICE), "letters", stat=True),
    _one("Waiting messages", "short", largest(QUEUE_MESSAGES, "service", SERVICE), "messages"),
    _one("Age of the oldest message", "s", largest(QUEUE_OLDEST_SECONDS, "service", SERVICE), "age"),
    _one("Deliveries per second", "short", rate(TASKS, "kind, outcome", SERVICE), "{{kind}} {{outcome}}"),
    _one("Tasks in work", "short", f"sum({TASKS_RUNNING.exported}{{{SERVICE}}})", "tasks"),
    _quantiles("Time until work begins", "s", TASK_WAIT_SECONDS, "", SERVICE),
    _quantiles("Time of tasks", "s", TASK_SECONDS, "kind", SERVICE),
    _quantiles("Size of batches", "short", BATCH_SIZE, "", SERVICE),
    _one("Tokens per second", "short", rate(TOKENS, "tokens", SERVICE), "{{tokens}}"),
    _one(
        "HTTP requests per second", "reqps",
        f'sum by (status_code) (rate(ray_serve_num_http_requests_total{{application="$service"}}[{RANGE}]))',
        "{{status_code}}",
    ),
    _one(
        "Latency of HTTP requests, 95 %", "ms",
        "histogram_quantile(0.95, sum by (le) "
        f'(rate(ray_serve_deployment_processing_latency_ms_bucket{{deployment="$service"}}[{RANGE}])))',
        "95 %",
    ),
    _one(
        "Memory of the replicas", "bytes",
        'sum by (instance) (ray_component_uss_bytes{Component=~"ray::ServeReplica:$service.*"})', "{{instance}}",
    ),
    _one("Load of the GPUs", "percentunit", largest(GPU_UTILIZATION, "gpu, instance", SERVICE), "{{gpu}}"),
    _one("Memory of the GPUs", "bytes", largest(GPU_MEMORY_BYTES, "gpu, instance", SERVICE), "{{gpu}}"),
)  # fmt: skip
