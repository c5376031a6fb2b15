"""Errors that users see."""

import difflib
from collections.abc import Iterable

from poolbench.statuses import Code, Status

#: Characters of a received value that an error message quotes.
MAX_SHOWN = 100


class PoolbenchError(Exception):
    """Base of every error that is shown to a user without a traceback.

    Attributes:
        code: Machine-readable code, sent in HTTP bodies and failure records.
        status: Result status of the cells that this error affects.
        retryable: Whether the same task may succeed when run again.
        http_status: HTTP status of a service's response.
    """

    code: str = Code.FAILED
    status: Status = Status.FAILED
    retryable = False
    http_status = 400


class ConfigError(PoolbenchError):
    """The configuration or a command-line argument is wrong."""

    code = "config"


class UnknownNameError(ConfigError):
    """A name is not registered; the message offers the nearest valid ones."""

    code = "unknown_name"
    http_status = 404

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(unknown_name_message(kind, name, known))


class _UnknownOfKindError(UnknownNameError):
    kind: str

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(self.kind, name, known)


class UnknownConceptError(_UnknownOfKindError):
    code = "unknown_concept"
    kind = "concept"


class UnknownStrategyError(_UnknownOfKindError):
    code = "unknown_strategy"
    kind = "strategy"


class UnknownModelError(_UnknownOfKindError):
    code = "unknown_model"
    kind = "model"


class NoOwnerError(UnknownModelError):
    """A name without an owner, which is neither a preset nor a folder."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name, known)
        self.args = (f"{self}; an id of Hugging Face has an owner, such as openai-community/gpt2",)


class ModelError(ConfigError):
    """A model cannot be used: no tokenizer, unknown blocks, a layer out of range."""

    code = "model"


class LayerError(ModelError):
    code = "layer_out_of_range"


class InputError(PoolbenchError):
    """Data sent to a service or read from a file is unusable."""

    code: str = Code.INPUT


class TooLargeError(InputError):
    """A request or task would cost more than a service allows; it is refused before work starts."""

    code = Code.TOO_LARGE
    http_status = 413


class CorpusError(InputError):
    """A corpus file is malformed; the message names file and line."""

    code = "corpus"


class RestrictedError(PoolbenchError):
    """Data of a sensitive concept would leave the store, and the operator does not allow it."""

    code = "restricted"
    status = Status.RESTRICTED
    http_status = 403


class NotFoundError(PoolbenchError):
    code: str = Code.NOT_FOUND
    http_status = 404


class ConceptTakenError(ConfigError):
    """Another concept has the name."""

    code = "concept_taken"
    http_status = 409


class StoreError(PoolbenchError):
    """The object store cannot be reached, refuses the credentials, or is full."""

    code = "store"
    retryable = True
    http_status = 503


class AccessDeniedError(StoreError):
    """The object store refuses the credentials, or the file system the user."""


class IntegrityError(StoreError):
    """Stored bytes do not match the hash in their manifest."""

    code = "integrity"
    retryable = False


class DamagedError(IntegrityError):
    """An artifact cannot be read as it was committed; `key` names it, `what` says what is wrong."""

    code = "damaged"

    def __init__(self, key: str, what: str, remedy: str = "") -> None:
        remedy = remedy or "`poolbench-driver run` with the same arguments sets it aside and makes it again"
        super().__init__(f"artifact {key}: {what}; {remedy}")
        self.key, self.what = key, what


class BlockedPathError(StoreError):
    """Something that is not a file, or not a folder, blocks the path of an object."""

    code = "blocked_path"
    retryable = False


class BrokerError(PoolbenchError):
    """The message broker cannot be reached."""

    code = "broker"
    retryable = True
    http_status = 503


class EndpointError(PoolbenchError):
    """A service does not answer, or refuses the token."""

    code = "endpoint"
    retryable = True
    http_status = 503


class CancelledTaskError(PoolbenchError):
    """The sender cancelled a task; nothing failed."""

    code = "cancelled"


class ReceiptError(PoolbenchError):
    """A steered text lacks a valid receipt, so nothing proves that it was steered."""

    code = "receipt"
    http_status = 500


class CellError(PoolbenchError):
    """One result cell cannot be computed. Its row has the status, and the message as reason.

    Args:
        status: Status of the row.
        reason: Why there is no value.
    """

    def __init__(self, status: Status | str, reason: str) -> None:
        super().__init__(reason)
        self.status = Status(status)
        self.code = self.status.value


def unknown_name_message(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the message that `name` is unknown, with the three nearest of `known`."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower()[:MAX_SHOWN], list(lowered), n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(lowered[c] for c in close)}?" if close else f"known: {', '.join(names)}"
    return f"unknown {kind} {shown(name)}; {hint}"


def shown(value: object) -> str:
    """Quote a received value for an error message: shortened, without control characters or lone surrogates."""
    try:
        text = repr(value).encode("utf-8", "backslashreplace").decode()
    except (RecursionError, ValueError):  # the latter for integers of more than 4,300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
