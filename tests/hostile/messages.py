"""Hostile queue messages: bytes that are no message, envelopes that ask for more, and tasks that nobody should do."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.hostile.values import NAMES, PICKLE, Raw, encode, hostile

from poolbench.contracts.wire import SERVICES

_KINDS = {
    "extractor": ("extract", "calibrate", "count"),
    "pooler": ("annotate", "pool"),
    "prober": ("probe", "layers", "task", "directions", "component", "nulls"),
    "scorer": ("train", "gate", "score"),
    "steerer": ("generate", "continue"),
}
_TASK_SHARE = 0.35
_FILE_SHARE = 0.02
_BOMBS = (gzip.compress(b" " * 10_000_000, mtime=0), zlib.compress(b" " * 10_000_000))


@dataclass(frozen=True)
class Message:
    """One hostile message.

    Attributes:
        kind: Class of hostility.
        raw: Its bytes; of a special file none.
        special: `pipe`, `folder`, `link` or `sparse`, which only a folder broker can hold; empty for bytes.
        is_task: Whether its envelope is a proper one. Then the task may be understood, and fail on record;
            everything else becomes a dead letter.
    """

    number: int
    service: str
    kind: str
    raw: bytes = b""
    special: str = ""
    is_task: bool = False

    @property
    def shown(self) -> str:
        """The message in one line."""
        return f"#{self.number} {self.kind} for the {self.service}: {self.special or repr(self.raw[:120])}"


def message(seed: int, number: int, *, files: bool) -> Message:
    """The message of this number; special files only where the broker is a folder."""
    rng = random.Random(f"{seed}/message/{number}")
    service = SERVICES[number % len(SERVICES)]
    draw = rng.random()
    if draw < _FILE_SHARE:
        special = rng.choice(("pipe", "folder", "link", "sparse"))
        if files:
            return Message(number, service, "special file", special=special)
    if draw < _FILE_SHARE + _TASK_SHARE:
        task = _hostile_task(service, rng)
        return Message(number, service, "hostile task", envelope(task, service), is_task=True)
    name, make = rng.choice(_NO_MESSAGES if rng.random() < 0.5 else _ENVELOPES)
    return Message(number, service, name, make(service, rng))


def probe_task(service: str, number: int) -> dict[str, Any]:
    """A task whose failure is recorded at once: a sign that the service still takes messages."""
    kind = f"{service}.{_KINDS[service][0]}"
    return _task(kind, f"hostile-sign-{service}-{number}", outputs={"none": f"hostile.{number:032x}"})


def envelope(task: Any, service: str, **headers: Any) -> bytes:
    """A message as Celery writes it."""
    return json.dumps(_envelope(base64.b64encode(_arguments(task)).decode(), service, headers)).encode()


def _arguments(task: Any) -> bytes:
    nothing = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return encode([[], {"task": task}, nothing])


def _envelope(body: Any, service: str, headers: dict[str, Any]) -> dict[str, Any]:
    name = f"poolbench-{service}"
    properties = {
        "correlation_id": "x",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": name},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": "00000000-0000-0000-0000-000000000000",
    }
    plain = {"lang": "py", "task": "run_task", "id": "x", "root_id": "x", "retries": 0, "eta": None}
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {**plain, "timelimit": [None, None], **headers},
        "properties": properties,
    }


def _task(kind: str, task_id: str, **fields: Any) -> dict[str, Any]:
    plain = {"schema_version": 1, "run_id": "", "inputs": {}, "outputs": {"x": "hostile.0"}, "params": {}}
    return {**plain, "task_id": task_id, "kind": kind, "restricted": False, **fields}


def _hostile_task(service: str, rng: random.Random) -> dict[str, Any]:
    """A task with a proper envelope; some are understood and must fail, some are none."""
    key = f"hostile.{rng.getrandbits(128):032x}"
    task = _task(f"{service}.{rng.choice(_KINDS[service])}", key, outputs={"x": key})
    name = rng.choice(
        ("kind", "task_id", "inputs", "outputs", "params", "schema_version", "restricted", "none", "field")
    )
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
    if name == "field":
        return {**task, rng.choice(("x", "__class__", "\ud800")): hostile(rng)}
    return {**task, name: values[name]()} if name in values else task


def _text(make: Callable[[random.Random], bytes]) -> Callable[[str, random.Random], bytes]:
    return lambda service, rng: make(rng)


def _with_body(make: Callable[[random.Random], Any]) -> Callable[[str, random.Random], bytes]:
    return lambda service, rng: encode(_envelope(make(rng), service, {}))


def _with_header(name: str, *values: Any) -> Callable[[str, random.Random], bytes]:
    def make(service: str, rng: random.Random) -> bytes:
        task = _task(f"{service}.{_KINDS[service][0]}", "hostile-header", outputs={"x": "hostile.1"})
        body = base64.b64encode(_arguments(task)).decode()
        return encode(_envelope(body, service, {name: rng.choice(values)}))

    return make


def _without(*names: str) -> Callable[[str, random.Random], bytes]:
    def make(service: str, rng: random.Random) -> bytes:
        whole = _envelope(base64.b64encode(b"[]").decode(), service, {})
        name = rng.choice(names)
        return encode({**{each: part for each, part in whole.items() if each != name}, **_spoilt(name, rng)})

    return make


def _spoilt(name: str, rng: random.Random) -> dict[str, Any]:
    return rng.choice(({}, {name: hostile(rng)}, {name: None}))


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


_NO_MESSAGES: tuple[tuple[str, Callable[[str, random.Random], bytes]], ...] = (
    ("garbage", _text(lambda rng: rng.randbytes(rng.choice((1, 100, 100_000))))),
    ("empty", _text(lambda rng: rng.choice((b"", b" ", b"\n\n")))),
    ("invalid UTF-8", _text(lambda rng: b'{"body": "\xff\xfe\xc3"}')),
    ("no object", _text(lambda rng: rng.choice((b"[1,2]", b"null", b"{}", b"0", b'"x"', b"true", b"NaN", b"[]")))),
    ("deep", _text(lambda rng: b"[" * 200_000 + b"]" * 200_000)),
    ("deep object", _text(lambda rng: b'{"a":' * 50_000 + b"1" + b"}" * 50_000)),
    ("truncated", _text(lambda rng: encode(_envelope("W10=", "pooler", {}))[: rng.randrange(400)])),
    ("pickle", _text(lambda rng: PICKLE)),
    ("large", _text(lambda rng: b'{"x": "' + b"x" * 6_000_000 + b'"}')),
    ("huge number", _text(lambda rng: b'{"body": ' + b"9" * 6000 + b"}")),
)
_ENVELOPES: tuple[tuple[str, Callable[[str, random.Random], bytes]], ...] = (
    ("body no base64", _with_body(lambda rng: rng.choice(("***", "a", "\ud800", "=", "é")))),
    ("body no text", _with_body(lambda rng: rng.choice((None, 1, [], {}, True, [1, 2])))),
    (
        "body scalar",
        _with_body(lambda rng: _base64(rng.choice((b"1", b"null", b'"x"', b"[]", b"{}", b"[1,2,3]", b"[[],[],[]]")))),
    ),
    ("body garbage", _with_body(lambda rng: _base64(rng.randbytes(200)))),
    ("body pickle", _with_body(lambda rng: _base64(PICKLE))),
    ("body deep", _with_body(lambda rng: _base64(b"[" * 100_000 + b"]" * 100_000))),
    ("body compressed", _with_body(lambda rng: _base64(rng.choice(_BOMBS)))),
    ("task no object", _with_body(lambda rng: _base64(_arguments(rng.choice((None, 1, [], "x", Raw("NaN"))))))),
    ("timelimit", _with_header("timelimit", "x", [1], ["a", "b"], {}, 5, [-1, -1])),
    ("pause", _with_header("pause_s", "x", "9999-12-31T23:59:59+00:00", 10**30, [], -1, 61, True)),
    ("expires", _with_header("expires", "x", "1970-01-01T00:00:00+00:00", 1, [], -1)),
    ("retries", _with_header("retries", -1, 10**30, "x", None, 1e308, True, 99)),
    (
        "task name",
        _with_header("task", "os.system", "celery.backend_cleanup", "", None, 1, [], "x" * 5000, "celery.chord"),
    ),
    ("id", _with_header("id", None, 1, [], {}, "")),
    ("compression", _with_header("compression", "zlib", "application/x-gzip", "x", 1)),
    ("group", _with_header("group", "x", {}, 1)),
    ("part missing", _without("body", "headers", "properties", "content-type", "content-encoding")),
)
