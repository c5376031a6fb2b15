"""Hostile queue messages: those of `tests/poison.py`, bytes and bodies drawn at random, and hostile tasks."""

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.trials.hostile.values import NAMES, encode, hostile
from tests.poison import NOTHING, POISON, good_envelope

from poolbench.contracts.wire import SERVICES

_KINDS = {
    "extractor": ("extract", "calibrate", "count"),
    "pooler": ("annotate", "pool"),
    "prober": ("probe", "layers", "task", "directions", "component", "nulls"),
    "scorer": ("train", "gate", "score"),
    "steerer": ("generate", "continue"),
}
_TASK_SHARE = 0.35
_RANDOM_SHARE = 0.1
_BOMBS = (gzip.compress(b" " * 10_000_000, mtime=0), zlib.compress(b" " * 10_000_000))


@dataclass(frozen=True)
class Message:
    """One hostile message.

    Attributes:
        kind: Class of hostility.
        raw: Its bytes.
        is_task: Whether its envelope is a proper one. Then the task may be understood, and fail on record;
            everything else becomes a dead letter.
    """

    number: int
    service: str
    kind: str
    raw: bytes = b""
    is_task: bool = False


def message(seed: int, number: int) -> Message:
    """The message of this number."""
    rng = random.Random(f"{seed}/message/{number}")
    service = SERVICES[number % len(SERVICES)]
    if rng.random() < _TASK_SHARE:
        task = _hostile_task(service, rng)
        return Message(number, service, "hostile task", envelope(task, service), is_task=True)
    if rng.random() < _RANDOM_SHARE:
        return Message(number, service, "random bytes", rng.randbytes(rng.choice((1, 100, 100_000))))
    if rng.random() < _RANDOM_SHARE:
        return Message(number, service, "random body", _with_body(rng.choice((*_BOMBS, rng.randbytes(200))), service))
    kind = rng.choice(list(POISON))
    return Message(number, service, kind, POISON[kind][0])


def probe_task(service: str, number: int) -> dict[str, Any]:
    """A task whose failure is recorded at once: a sign that the service still takes messages."""
    kind = f"{service}.{_KINDS[service][0]}"
    return _task(kind, f"hostile-sign-{service}-{number}", outputs={"none": f"hostile.{number:032x}"})


def envelope(task: Any, service: str, **headers: Any) -> bytes:
    """A message as Celery writes it."""
    return _with_body(encode([[], {"task": task}, NOTHING]), service, **headers)


def _with_body(body: bytes, service: str, **headers: Any) -> bytes:
    whole = good_envelope(f"poolbench-{service}")
    changed = {"body": base64.b64encode(body).decode(), "headers": whole["headers"] | headers}
    return json.dumps(whole | changed).encode()


def _task(kind: str, task_id: str, **fields: Any) -> dict[str, Any]:
    plain = {"schema_version": 1, "run_id": "", "inputs": {}, "outputs": {"x": "hostile.0"}, "params": {}}
    return {**plain, "task_id": task_id, "kind": kind, "restricted": False, **fields}


def _hostile_task(service: str, rng: random.Random) -> dict[str, Any]:
    """A task with a proper envelope; some are understood and must fail, some are none."""
    key = f"hostile.{rng.getrandbits(128):032x}"
    task = _task(f"{service}.{rng.choice(_KINDS[service])}", key, outputs={"x": key})
    values: dict[str, Callable[[], Any]] = {
        "kind": lambda: rng.choice(
            (f"{service}.nothing", "nobody.does", "", "os.system", "x" * 5000, None, hostile(rng))
        ),
        "task_id": lambda: rng.choice((*NAMES, hostile(rng))),
        "inputs": lambda: rng.choice(({"passages": rng.choice(NAMES)}, hostile(rng))),
        "outputs": lambda: rng.choice(({rng.choice(NAMES): rng.choice(NAMES)}, {}, hostile(rng))),
        "params": lambda: rng.choice(({"model": rng.choice(NAMES)}, {"pipeline": rng.choice(NAMES)}, hostile(rng))),
        "schema_version": lambda: rng.choice((0, 2, 10**30, "1", None, True)),
        "restricted": lambda: rng.choice((True, "yes", hostile(rng))),
    }
    name = rng.choice((*values, "none", "field"))
    if name == "field":
        return {**task, rng.choice(("x", "__class__", "\ud800")): hostile(rng)}
    return {**task, name: values[name]()} if name in values else task
