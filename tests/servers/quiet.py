"""Bases of what tests serve: a service that has no verbs, and a handler of HTTP requests that prints nothing."""

from typing import Any


class TasksOnly:
    """A service that works on tasks, and has no verbs."""

    def routes(self, router: Any) -> None:
        """No verbs."""

    def health(self) -> dict[str, Any]:
        return {}


class Quiet:
    """A handler of requests without a log; it comes before `BaseHTTPRequestHandler`."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
