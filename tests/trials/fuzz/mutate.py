"""Mutating bytes and JSON: drawn from a seed, so that a number names the same case again."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.trials.hostile.mutate import places, spoiled
from tests.trials.hostile.values import NAMES, PICKLE, deep, encode

#: What readers of some format give a meaning to, and a place outside of every case's folder.
TOKENS: tuple[bytes, ...] = (
    *(b"\x00", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00" * 8, b"\x80" * 8),
    *(b"ARROW1", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"\x80\x04", PICKLE),
    *(b"NaN", b"1e999", b"-1", b"9" * 5000, b"null", b"true", b'"', b"\\ud800", b"{", b"}", b"[", b"]", b","),
    *(b"[" * 3000, b'{"a":' * 3000, b"- " * 3000, b"!!python/object/apply:os.system ['touch outside/code']\n"),
    *(b"&a [*a]\n", b"<<: *a\n", b"? ", b"%YAML 9.9\n", b"---\n", b"2001-99-99", b"0x" + b"f" * 2000, b"\t"),
    *(b"|O", b"'descr': '|O'", b"(999999999999,)", b"(-1,)", b"<f8", b"<U999999999", b"fortran_order", b"F16"),
    *(b"../../outside/canary", b"/etc/passwd", b"file:///etc/passwd", b"\x1b[2J", b"\xe2\x80\xae", b"\r\n"),
)

Mutation = Callable[[bytes, random.Random], bytes]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to four mutations; few, so that most of it still has a meaning."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        data = rng.choice(_MUTATIONS)(data, rng)
    return data


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """Return JSON with hostile values at places of it, or mutated bytes."""
    if rng.random() < 0.35:
        return mutated(data, rng)
    body = json.loads(data)
    if rng.random() < 0.1:
        return encode(rng.choice((deep(300), deep(100_000), None, [], "x", 7, {}, [body], {"x": body})))
    return encode(spoiled(body, list(places(body)), rng))


def mutated_header(data: bytes, start: int, size: int, rng: random.Random) -> bytes:
    """Return bytes that are mutated in one part only, where the format describes itself."""
    return data[:start] + mutated(data[start : start + size], rng) + data[start + size :]


def hostile_name(rng: random.Random) -> str:
    """Return a name that leads somewhere else, or is none."""
    return rng.choice(("../../outside/canary", *NAMES))


def _at(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    at, new = _at(data, rng), rng.randbytes(rng.choice((1, 2, 4, 8)))
    return data[:at] + new + data[at + len(new) :]


def _number(data: bytes, rng: random.Random) -> bytes:
    """Replace four or eight bytes by an extreme number."""
    width = rng.choice((2, 4, 8))
    value = rng.choice((0, 1, 2, 2 ** (8 * width - 1) - 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 255, 65536))
    at = _at(data, rng) & ~(width - 1)
    return data[:at] + (value % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _at(data, rng)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _replace(data: bytes, rng: random.Random) -> bytes:
    at, token = _at(data, rng), rng.choice(TOKENS)
    return data[:at] + token + data[at + len(token) :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted((_at(data, rng), _at(data, rng)))
    return data[:first] + data[min(second, first + rng.choice((1, 4, 64, 10**9))) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted((_at(data, rng), _at(data, rng)))
    part = data[first : min(second, first + 256)]
    return data[:first] + part * rng.choice((2, 3, 50)) + data[first + len(part) :]


def _move(data: bytes, rng: random.Random) -> bytes:
    first, second = sorted((_at(data, rng), _at(data, rng)))
    return data[second:] + data[first:second] + data[:first]


_MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _flip, _overwrite, _number, _number, _insert, _replace, _cut, _repeat, _move),
    lambda data, rng: data[: _at(data, rng)],
    lambda data, rng: data + rng.randbytes(rng.choice((1, 16, 1000))),
)


def forged(fields: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy of a JSON object with one field of a wrong kind; the rest stays as it is."""
    name = rng.choice(list(fields))
    return {**fields, name: rng.choice((None, -1, 2**64, "", "x" * 5000, [], {}, hostile_name(rng), True, 1.5))}
