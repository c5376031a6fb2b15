"""Logs of a process: as text for people, or one JSON object per line for programs.

Each record carries the ids of the work in progress. Attributes that libraries add to a record (`extra`) are not
written, because they may quote a passage.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from poolbench.settings import LogSettings
from poolbench.telemetry.ids import current_ids

_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class TextFormatter(logging.Formatter):
    """The standard log line, followed by the ids of the current work."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        ids = " ".join(f"{name}={value}" for name, value in current_ids().items())
        line = super().formatMessage(record)
        return f"{line} [{ids}]" if ids else line


class JsonFormatter(logging.Formatter):
    """A log format with a JSON object per record. docs/observability.md lists the fields."""

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self._service = {"service": service} if service else {}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._service,
            **current_ids(),
            "place": f"{record.filename}:{record.lineno}",
            "pid": record.process,
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = record.exc_info[0].__name__
            fields["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, default=str)


class _Output(logging.StreamHandler[Any]):
    """The one handler of a process; a second call of `configure_logging` replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:  # type: ignore[override]
        """Return the current standard error, because Ray and tests replace `sys.stderr`."""
        return sys.stderr


def configure_logging(service: str = "", *, level: int = logging.INFO) -> None:
    """Send the records of this process to standard error in the format of POOLBENCH_LOG_FORMAT.

    Raises:
        ConfigError: The variable has another value than `text` or `json`.
    """
    output = _Output()
    output.setFormatter(JsonFormatter(service) if as_json() else TextFormatter(_TEXT))
    root = logging.getLogger()
    for handler in list(root.handlers):
        # Libraries may have added a plain one, which would write each record a second time.
        if type(handler) in (_Output, logging.StreamHandler):
            root.removeHandler(handler)
    root.addHandler(output)
    root.setLevel(level)
    logging.captureWarnings(True)


def as_json() -> bool:
    """Return whether logs are JSON."""
    return LogSettings.load().format == "json"


def serve_logging() -> dict[str, str]:
    """Return the `logging_config` of Ray Serve, which sets the format of Serve's own logs."""
    return {"encoding": "JSON" if as_json() else "TEXT"}
