"""Names of the queues: one for each service, and one for its dead letters."""

_PREFIX = "poolbench-"


def queue_name(service: str) -> str:
    """Return the name of the queue that a service consumes."""
    return f"{_PREFIX}{service}"


def failed_queue_name(service: str) -> str:
    """Return the name of the queue that keeps a service's dead letters."""
    return f"{queue_name(service)}.failed"


def service_of(queue: str) -> str:
    """Return the service that consumes a queue."""
    return queue.removeprefix(_PREFIX)
