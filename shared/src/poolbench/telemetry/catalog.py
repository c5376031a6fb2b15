"""All instruments of PoolBench. Documentation, dashboards and tests are made from, or checked against, this table.

Ray and Ray Serve have metrics of their own, for nodes, GPUs, replicas and HTTP requests. None is repeated here.
"""

from poolbench.contracts.wire import SERVICES
from poolbench.statuses import TaskOutcome
from poolbench.telemetry.instruments import Counter, Gauge, Histogram, Instrument, Label

#: Outcomes of a delivery beyond those that a worker returns.
RETRIED, REFUSED = "retried", "refused"

_SERVICE = Label("service", "the service", SERVICES)
_KIND = Label("kind", "kind of the task; `other` for kinds that the service does not know")
_OUTCOME = Label("outcome", "how the delivery ended", (*TaskOutcome, RETRIED, REFUSED))
_WHICH_TOKENS = Label("tokens", "tokens that were read or generated", ("read", "generated"))
_STORE = Label("store", "folder or S3", ("folder", "s3"))
_BROKER = Label("broker", "folder or Redis", ("folder", "redis"))
_STORE_OPERATION = Label("operation", "operation", ("put", "get", "exists", "list", "delete", "move"))
_BROKER_OPERATION = Label("operation", "operation", ("send", "count", "read", "bury", "remove"))
_CODE = Label("code", "code of the error")

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)

QUEUE_MESSAGES = Gauge(
    "poolbench_queue_messages", "messages", (_SERVICE,), "Messages that wait for a service; those in work do not count."
)
QUEUE_OLDEST_SECONDS = Gauge(
    "poolbench_queue_oldest_seconds", "seconds", (_SERVICE,), "Age of the oldest waiting message; 0 if none waits."
)
DEAD_LETTERS = Gauge("poolbench_dead_letters", "letters", (_SERVICE,), "Dead letters of a service.")

TASKS = Counter(
    "poolbench_tasks", "deliveries", (_SERVICE, _KIND, _OUTCOME), "Deliveries of tasks that ended, by outcome."
)
TASK_SECONDS = Histogram(
    "poolbench_task_seconds", "seconds", (_SERVICE, _KIND), "Time of deliveries that did work.", _SECONDS
)
TASK_WAIT_SECONDS = Histogram(
    "poolbench_task_wait_seconds",
    "seconds",
    (_SERVICE,),
    "Time from sending a task to the start of its first delivery, by the clocks of both machines.",
    _SECONDS,
)
TASKS_RUNNING = Gauge("poolbench_tasks_running", "tasks", (_SERVICE,), "Tasks in work in a replica.")
LEASE_LOSSES = Counter(
    "poolbench_lease_losses", "leases", (), "Leases on Redis that ended although their holder was at work."
)

BATCH_SIZE = Histogram(
    "poolbench_batch_size",
    "items",
    (_SERVICE,),
    "Passages of a forward pass (extractor), windows of one (scorer), texts of one call of the engine (steerer).",
    _SIZES,
)
TOKENS = Counter(
    "poolbench_tokens", "tokens", (_SERVICE, _WHICH_TOKENS), "Tokens of passages, prompts and generated texts."
)

STORE_SECONDS = Histogram(
    "poolbench_store_seconds",
    "seconds",
    (_STORE, _STORE_OPERATION),
    "Time of an operation on the object store, retries included.",
    _SHORT_SECONDS,
)
STORE_ERRORS = Counter(
    "poolbench_store_errors", "operations", (_STORE, _STORE_OPERATION, _CODE), "Operations on the store that failed."
)
STORE_RETRIES = Counter("poolbench_store_retries", "requests", (), "Requests to S3 that were sent again.")
STORE_BYTES = Counter(
    "poolbench_store_bytes", "bytes", (_STORE, _STORE_OPERATION), "Bytes that were written (`put`) or read (`get`)."
)
BROKER_SECONDS = Histogram(
    "poolbench_broker_seconds",
    "seconds",
    (_BROKER, _BROKER_OPERATION),
    "Time of an operation on the broker; waiting for a message is none.",
    _SHORT_SECONDS,
)
BROKER_ERRORS = Counter(
    "poolbench_broker_errors", "operations", (_BROKER, _BROKER_OPERATION), "Operations on the broker that failed."
)
HTTP_REFUSALS = Counter(
    "poolbench_http_refusals", "requests", (_CODE,), "Requests that the gate refused; Serve does not count them."
)

#: Every instrument, in the order of the documentation.
INSTRUMENTS: tuple[Instrument, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Instrument)
)
