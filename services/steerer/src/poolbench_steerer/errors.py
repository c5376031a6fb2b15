"""Errors of the steerer that are its own; all others come from ``poolbench.errors``."""

from __future__ import annotations

from poolbench.errors import InputError, NotFoundError, PoolbenchError


class UnknownVectorError(NotFoundError):
    """No vector of this id is in the bank: never registered, or evicted."""

    code = "unknown_vector"


class VectorError(InputError):
    """A vector has the wrong width, is not finite, or is zero."""

    code = "vector"


class PromptTooLongError(InputError):
    """Prompt and new tokens together exceed the model's window."""

    code = "prompt_too_long"


class BankFullError(PoolbenchError):
    """Every slot of the device bank holds a vector that is in use."""

    code = "bank_full"
    retryable = True
    http_status = 503


class EngineDiedError(PoolbenchError):
    """The engine process died more often than it may be restarted for one call."""

    code = "engine_died"
    retryable = True
    http_status = 503
