"""Errors of the steerer that are its own; all others come from `poolbench.errors`."""

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


class StrengthError(InputError):
    """A steering coefficient is not finite, or far beyond anything a model can hold."""

    code = "strength"


class NoEffectError(InputError):
    """Steering was applied as asked, but is too small to change the model's states."""

    code = "no_effect"
    http_status = 422


class StateOverflowError(InputError):
    """States of the model became too large for its number type during a request, so its text means nothing."""

    code = "state_overflow"
    http_status = 422


class MediaTypeError(InputError):
    """A body has a content type that the verb does not read."""

    code = "media_type"
    http_status = 415


class OverloadedError(PoolbenchError):
    """More texts are waiting than the service keeps; ask again later."""

    code = "overloaded"
    retryable = True
    http_status = 429


class ClientGoneError(PoolbenchError):
    """The client closed its connection, so its request was cancelled; no client reads this response."""

    code = "client_gone"
    http_status = 499


class StreamBrokenError(PoolbenchError):
    """The engine died during a stream, and its successor generated other tokens than had been sent."""

    code = "stream_broken"
    retryable = True
    http_status = 503


class BankFullError(PoolbenchError):
    """Every slot of the device bank holds a vector that is in use."""

    code = "bank_full"
    retryable = True
    http_status = 503


class EngineError(PoolbenchError):
    """The engine failed at a request for a reason of its own; the replica's log has the traceback."""

    code = "engine"
    http_status = 500


class EngineDiedError(PoolbenchError):
    """The engine process died more often than it may be restarted for one call."""

    code = "engine_died"
    retryable = True
    http_status = 503
