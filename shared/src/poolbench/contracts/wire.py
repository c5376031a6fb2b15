"""Facts that several processes must agree on: names, paths in the object store, exit codes, HTTP."""

from enum import IntEnum

from poolbench.statuses import Code

#: Every service. Its queue, its HTTP route and its Ray resource carry the same name.
#: Where the console is served; it asks its readers for the token itself.
CONSOLE_PATH = "/console"
SERVICES = ("extractor", "pooler", "prober", "scorer", "steerer")


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILURES = 1  # finished, but not everything succeeded
    USAGE = 2  # the command line or the configuration is wrong
    INTERRUPTED = 130


#: Names that texts without a direction, and texts along the null directions, have in tasks and tables.
UNSTEERED = "unsteered"
NULLS = "nulls"

#: Folders of the object store.
ARTIFACTS_FOLDER = "artifacts"
DAMAGED_FOLDER = "damaged"
#: Records of imported activations: `activations/<name>.json`.
ACTIVATIONS_FOLDER = "activations"
#: What commands write to see whether the store works.
HEALTH_FOLDER = "health"
#: Records that say which scorer answers ad-hoc requests: `scorers/<concept>/<base>.json`.
SCORERS_FOLDER = "scorers"
#: Records of runs: `runs/<run id>/state.json`, `progress.json`, `config.json`, `keys.json.gz`, `further.json.gz`
#: with keys of what was made for a run since, and the mark `cancel`.
RUNS_FOLDER = "runs"
RUN_STATE, RUN_PROGRESS, RUN_CANCEL = "state.json", "progress.json", "cancel"
#: Folder in a run's record with the tables of a run that has ended.
RUN_FILES = "files/"
#: Concepts of users: `concepts/<id>/concept.json` and passages.
CONCEPTS_FOLDER = "concepts"
#: Vectors that steer a model by its name, and probes that are read along: `served/vectors/`, `served/probes/`.
SERVED_FOLDER = "served"
#: File of an artifact that is created last; where it is, the artifact is committed.
MANIFEST_FILE = "manifest.json"


def failure_path(task_id: str) -> str:
    """Return the path at which a worker records why a task failed."""
    return f"failures/{task_id}.json"


def progress_path(task_id: str) -> str:
    """Return the path at which a worker reports the progress of a task."""
    return f"progress/{task_id}.json"


def cancel_path(task_id: str) -> str:
    """Return the path of the object that cancels a task.

    The driver removes this object when it sends the task again.
    """
    return f"cancelled/{task_id}"


def run_path(run_id: str, name: str = "") -> str:
    """Return the path of a file in a run's record. Without `name`, return the path of the record's folder."""
    return f"{RUNS_FOLDER}/{run_id}/{name}"


def scorers_path(concept: str = "") -> str:
    """Return the folder of a concept's scorer records, or of all concepts'."""
    return f"{SCORERS_FOLDER}/{concept}/" if concept else f"{SCORERS_FOLDER}/"


#: Header with the id of a request; every response of the gate has it.
REQUEST_ID_HEADER = "X-Request-ID"

HEALTH_PATH = "/health"
DOCS_PATH = "/docs"
#: Port on which each Ray node exports metrics for Prometheus.
METRICS_PORT = 8080
#: Last event of a stream of server-sent events.
END_OF_STREAM = "[DONE]"

JSON_TYPE = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
EVENT_STREAM = "text/event-stream"
OCTET_STREAM = "application/octet-stream"
SAFETENSORS = "application/vnd.safetensors"

#: Headers that errors of a status carry.
ERROR_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries the token."""
    return {"Authorization": f"Bearer {token}"}


#: Code of an HTTP error that has no code of its own.
HTTP_CODES = {
    401: Code.UNAUTHORIZED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    408: Code.DEADLINE,
    429: Code.BUSY,
    503: Code.UNAVAILABLE,
}
