"""What the engine raises, as errors of ours: a caller need not have vLLM installed to read them."""

from __future__ import annotations

from poolbench.errors import InputError, PoolbenchError
from poolbench_steerer.errors import EngineError

#: vLLM's errors for requests that it refuses: the base class of 0.32, and the one class of 0.25.
_REFUSALS = ("VLLMClientError", "VLLMValidationError")


def as_ours(error: Exception) -> Exception:
    """The error that leaves the engine's process for ``error``: ours and Python's own stay what they are.

    An exception is pickled where it leaves a replica of Ray Serve, and loaded in the HTTP proxy of all services. There
    the class of a foreign one imports its whole package, which takes seconds and hundreds of megabytes.
    """
    kind = type(error)
    if isinstance(error, PoolbenchError) or kind.__module__ == "builtins":
        return error
    if any(base.__name__ in _REFUSALS for base in kind.__mro__):
        return InputError(f"the engine refuses the request: {error}")
    reason = error.__cause__ or error  # vLLM's own EngineGenerateError says nothing itself
    return EngineError(f"the engine failed at this request: {type(reason).__name__}: {reason}")
