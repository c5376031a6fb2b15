"""No code of a service waits on its event loop, where every other request and the health check would wait with it.

Tests run the services in their own process. Files, sockets, locks and sleep then raise an error in a coroutine of ours,
whatever file they are called from.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from blockbuster import BlockBuster

#: Packages whose coroutines answer requests.
_SERVICES = (
    *("poolbench", "poolbench_extractor", "poolbench_pooler", "poolbench_prober", "poolbench_scorer"),
    "poolbench_steerer",
)
#: Functions that may wait: file, and name.
_MAY_WAIT = (
    ("poolbench_steerer/engine/engine.py", "start"),  # no text is made on this loop before the engine is there,
    ("poolbench_steerer/engine/engine.py", "close"),  # nor when it ends
    ("poolbench_steerer/completions/vllm_server.py", "on"),  # once, at the first completion of an engine
    ("poolbench/http/openapi.py", "__init__"),  # an application is made before it answers
    ("vllm/v1/sample/logits_processor/__init__.py", "_load_logitsprocs_plugins"),  # once, in the self-test of an engine
    ("fastapi/routing.py", "_extract_endpoint_context"),  # one look at a file of the code, for the text of an error
)


@contextmanager
def waiting_forbidden() -> Iterator[None]:
    """Let whatever waits in a coroutine of a service raise `BlockingError` until the block ends."""
    guard = BlockBuster(list(_SERVICES))
    for function in guard.functions.values():
        for file, name in _MAY_WAIT:
            function.can_block_in(file, name)
    guard.activate()
    try:
        yield
    finally:
        guard.deactivate()
