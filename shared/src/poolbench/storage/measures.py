"""Measure the operations of a store: their time, errors and bytes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from poolbench.errors import NotFoundError, PoolbenchError
from poolbench.telemetry.catalog import STORE_BYTES, STORE_ERRORS, STORE_SECONDS
from poolbench.telemetry.traces import span


def kind_of(uri: str) -> str:
    """Return the kind of the store with this address, as instruments name it."""
    return "s3" if uri.startswith("s3://") else "folder"


@contextmanager
def measured(uri: str, operation: str) -> Iterator[None]:
    """Measure the block as an operation of the store at `uri`; an empty name measures nothing.

    A missing object is an answer, not an error.
    """
    if not operation:
        yield
        return
    kind, began = kind_of(uri), time.perf_counter()
    try:
        with span(f"store {operation}"):
            yield
    except NotFoundError:
        raise
    except PoolbenchError as error:
        STORE_ERRORS.add(store=kind, operation=operation, code=error.code)
        raise
    finally:
        STORE_SECONDS.observe(time.perf_counter() - began, store=kind, operation=operation)


def count_bytes(uri: str, operation: str, num_bytes: int) -> None:
    """Count the bytes that an operation moved."""
    STORE_BYTES.add(num_bytes, store=kind_of(uri), operation=operation)
