"""Values that no field should fall over: wrong types, extremes, text that is no text, names that are paths."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

#: A pickle that would run a command if anything unpickled it.
PICKLE = (
    b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94"
    b"\x93\x94\x8c\x02id\x94\x85\x94R\x94."
)


class Raw:
    """JSON that Python's encoder would not write, put into a body as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**31 - 1, -(2**31), 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 2**70, 10**30),
    *(-0.0, 0.5, 1.5, 2.1, 1e-320, 1e-45, 1e31, 3.5e38, -3.5e38, 1e308, -1e308),
    *map(Raw, ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" * 400, "1" + "0" * 5000, "-0", "1E+2")),
)
TEXTS: tuple[Any, ...] = (
    *("", " ", "\x00", "a\x00b", "\ud800", "x\udfff\ud800", "\U0010ffff", "\ufffe\uffff", "\u202e\u200b\ufeff"),
    *("x" * 5000, "é" * 3000, "a" * 100_000, "\n" * 2000, "<|endoftext|>", "%s%n{0}", "'; DROP TABLE x;--"),
    *("NaN", "null", "true", "1e9", "[/red][bold]", "\x1b[2J\x07", "\r\nX-Injected: 1", "=cmd|' /C calc'!A0"),
)
NAMES: tuple[str, ...] = (
    *("../../x", "../" * 12 + "etc/passwd", "/etc/passwd", "/", ".", "..", "//", "~", "~root", "~nosuchuser"),
    *("demo_lm", "/tmp", "/dev/zero", "/proc/self/environ", "C:\\x", "..\\..\\x", "file:///etc/passwd"),
    *("http://127.0.0.1:1/x", "s3://x/y", "a/b/c", "no-such/model", "restricted.scorer.train.00", "scorer.train.0"),
    *("os", "__main__", "annotator/../annotator", "annotator\x00", "%2e%2e%2f", "x" * 5000, "\ud800/\ud800", ""),
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [[[[[]]]]],
    {"a": {"a": {}}},
    [True, 1, "x"],
)
_KINDS: tuple[tuple[Any, ...], ...] = (NUMBERS, TEXTS, NAMES, OTHERS)


def hostile(rng: random.Random) -> Any:
    """One hostile value; a copy, since a caller may change it."""
    if rng.random() < 0.15:
        return _MADE[rng.randrange(len(_MADE))](rng)
    return copy.deepcopy(rng.choice(rng.choice(_KINDS)))


def deep(depth: int, opening: str = "[", closing: str = "]") -> Raw:
    """A value nested so deep that a recursive reader overflows its stack."""
    return Raw(opening * depth + "1" + closing * depth)


def encode(body: Any) -> bytes:
    """A body as JSON; `Raw` parts and lone surrogates stay what they are."""
    raws: list[str] = []

    def default(value: Any) -> str:
        assert isinstance(value, Raw), type(value)
        raws.append(value.text)
        return f"\x01raw{len(raws) - 1}\x01"

    text = json.dumps(body, default=default)
    for index, raw in enumerate(raws):
        text = text.replace(json.dumps(f"\x01raw{index}\x01"), raw)
    return text.encode()


_MADE: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: deep(rng.choice((50, 500, 5000, 100_000))),
    lambda rng: deep(rng.choice((500, 20_000)), '{"a":', "}"),
    lambda rng: [0.0] * rng.choice((1, 255, 257, 10_000)),
    lambda rng: [rng.choice(("a", 1, None, 1.5, [])) for _ in range(50)],
    lambda rng: {f"k{index}": index for index in range(rng.choice((1, 300)))},
    lambda rng: "".join(chr(rng.randrange(0x110000)) for _ in range(200)),
    lambda rng: rng.getrandbits(rng.choice((65, 128, 4096))),
    lambda rng: rng.uniform(-1, 1) * 10.0 ** rng.randrange(-320, 308),
)
