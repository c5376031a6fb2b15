"""Requests written by hand: each is a way in that was once open, or that people try first."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.trials.hostile.bodies import VERBS, WIDTH
from tests.trials.hostile.case import Case
from tests.trials.hostile.values import NAMES, PICKLE, Raw, deep, encode

from poolbench.contracts.wire import SERVICES

_JSON = ("content-type", "application/json")
_HUGE = 9 * 2**20


def catalogue(token: str) -> list[Case]:
    """All of them, numbered from 0, with a token where one is meant to be."""
    bearer = ("authorization", f"Bearer {token}")
    made = [
        *(case for group in _WITH_TOKEN for case in _with(bearer, group())),
        *tokens(token),
        *unknown_routes(bearer),
        *media(bearer),
    ]
    return [replace(case, number=number) for number, case in enumerate(made)]


def post(kind: str, path: str, body: Any, *, refused: bool = True) -> Case:
    """A JSON request."""
    return Case(0, kind, "POST", path, (_JSON,), encode(body), refused=refused)


def changed(kind: str, path: str, *, refused: bool = True, **fields: Any) -> Case:
    """A valid body with other values in some fields."""
    return post(kind, path, {**VERBS[path], **fields}, refused=refused)


def steering() -> Iterator[Case]:
    """Vectors that overflow after scaling, that change nothing, or that are none."""
    vectors: dict[str, Any] = {
        "1e31": [1e31] * WIDTH,
        "3e38": [3e38] * WIDTH,
        "mixed": [1e31, -1e31] * (WIDTH // 2),
        "one": [1e30] + [0.0] * (WIDTH - 1),
        "nan": [Raw("NaN")] * WIDTH,
        "inf": [Raw("1e400")] + [0.1] * (WIDTH - 1),
    }
    for name, vector in vectors.items():
        for alpha in (1e8, -1e8):
            for layer in (0, 5):
                edit = {"vector": vector, "layer": layer, "alpha": alpha}
                many = {"prompts": ["x", "y", "z", "w"], "max_tokens": 20, "steering": edit}
                yield post(f"overflow {name}", "/steerer/generate", many)
    spread = {"vector": vectors["1e31"], "layer": 2, "alpha": 1e8}
    for positions in ("all", "prompt", "generated", 1):
        edit = {**spread, "positions": positions}
        yield post("overflow positions", "/steerer/generate", {"prompts": ["x y z"], "max_tokens": 9, "steering": edit})
    for operation in ("add_preserving_norm", "clamp", "erase", "add"):
        for unit in ({"alpha": 1e8}, {"strength": 1e30}, {"strength": 1e8, "residual_norm": 1e300}):
            edit = {"vector": vectors["1e31"], "layer": 1, "operation": operation, **unit}
            asked = {"prompts": ["x", "y"], "max_tokens": 12, "steering": edit}
            yield post(f"overflow {operation}", "/steerer/generate", asked, refused=False)
    for stream in (True, False):
        asked = {"prompt": ["x", "y"], "max_tokens": 12, "stream": stream, "logprobs": 2, "steering": spread}
        yield post("overflow completion", "/steerer/v1/completions", asked, refused=not stream)
    yield from _no_steering()


def _no_steering() -> Iterator[Case]:
    for value in (1e-45, 1e-38, 1e-30, 0.0):
        edit = {"vector": [value] * WIDTH, "layer": 2, "alpha": 1e-3}
        tiny = {"prompts": ["x"], "max_tokens": 3, "steering": edit}
        yield post("tiny vector", "/steerer/generate", tiny)
    for layer in (-1, 6, 99, 2**40, True, "2", 1.5):
        edit = {"vector": [0.1] * WIDTH, "layer": layer, "alpha": 1.0}
        yield post("layer", "/steerer/generate", {"prompts": ["x"], "max_tokens": 2, "steering": edit}, refused=False)
    for key in ("", "\x00", "../x", "x" * 5000, "\ud800", "0" * 64):
        edit = {"vector_id": key, "layer": 2, "alpha": 1.0}
        yield post("vector id", "/steerer/generate", {"prompts": ["x"], "max_tokens": 2, "steering": edit})
    for width in (0, 1, WIDTH - 1, WIDTH + 1, 100_000):
        edit = {"vector": [0.1] * width, "layer": 2, "alpha": 1.0}
        yield post("vector width", "/steerer/generate", {"prompts": ["x"], "max_tokens": 2, "steering": edit})
    edits = [{"vector": [0.1] * WIDTH, "layer": 2, "alpha": 1.0}] * 400
    yield post("many edits", "/steerer/generate", {"prompts": ["x"], "max_tokens": 2, "steering": {"edits": edits}})


def sampling() -> Iterator[Case]:
    """Sampling parameters that vLLM refuses or cannot hold."""
    for value in (2.1, 1e9, 1e308, Raw("1e400"), Raw("NaN"), -0.1):
        yield changed("temperature", "/steerer/generate", temperature=value)
        yield changed("temperature", "/steerer/v1/completions", temperature=value)
    for seed in (2**63, 2**64, -(2**63) - 1, 2**200, Raw("1e400")):
        yield changed("seed", "/steerer/generate", seed=seed)
        yield changed("seed", "/steerer/v1/completions", seed=seed)
    for count in (10**6, 10**9, 2**31, 2**63, 2**70):
        yield changed("max_tokens", "/steerer/generate", max_tokens=count)
        yield changed("max_tokens", "/steerer/v1/completions", max_tokens=count)
        yield changed("choices", "/steerer/v1/completions", n=count)
    for ids in ([-1], [10**9], [2**70], [[1], ["x"]], [1.5], [True], [None]):
        yield changed("token ids", "/steerer/v1/completions", prompt=ids)
    for text in ("\ud800", "a\udfff", "x" * 200_000):
        yield changed("prompt", "/steerer/generate", prompts=[text])
        yield changed("prompt", "/steerer/v1/completions", prompt=text)
        yield changed("text", "/steerer/perplexity", texts=[text])
    yield changed("prompts", "/steerer/generate", prompts=["x"] * 1025)


def costs() -> Iterator[Case]:
    """Work without end, asked for in one small request."""
    base = VERBS["/prober/probe"]
    names = ("num_permutations", "num_bootstrap", "folds", "num_control_words", "seed", "min_domain_class")
    for name in names[:4]:
        for value in (10**9, 2**63, 2**70, Raw("1e400"), -1, 1.5, "x", True):
            yield post(f"cost {name}", "/prober/probe", {**base, "params": {**base["params"], name: value}})
    for name in names[4:]:
        for wrong in (-1, 2**70, "x", None):
            yield post(f"cost {name}", "/prober/probe", {**base, "params": {**base["params"], name: wrong}})
    many = {**base["params"], "fold_seeds": list(range(1, 200_000))}
    yield post("cost fold_seeds", "/prober/probe", {**base, "params": many})
    for number in (10**9, 2**70, 0, -1, 1.5, True, "x"):
        yield changed("keywords", "/pooler/annotate", num_keywords=number, refused=number != 10**9)
    for k in ("x", 1.5, None, 0, -1, True, 10**9, 2**70):
        entry = {"id": "W2_last_k", "params": {"k": k}}
        yield changed("k", "/pooler/pool", strategies=[entry], refused=k not in (10**9, 2**70))
        yield changed("k", "/extractor/embed", strategy="W2_last_k", params=entry["params"], refused=False)
    for offsets in ([[0, 2**70], [3, 9]], [[-5, 2], [3, 9]], [[9, 2], [3, 1]], [[0, 2]], [["0", "2"], [3, 9]]):
        yield changed("offsets", "/pooler/pool", offsets=offsets, refused=False)
    yield changed("texts", "/extractor/embed", texts=["x"] * 1025)
    yield changed("texts", "/scorer/score", texts=["x"] * 10_001)
    yield changed("long text", "/pooler/annotate", texts=["word " * 210_000])


def names() -> Iterator[Case]:
    """Names that reach a file system or a loader."""
    for name in NAMES:
        refused = name not in ("annotator",)
        yield changed("name pipeline", "/pooler/annotate", pipeline=name, refused=refused)
        yield changed("name pipeline", "/pooler/pool", pipeline=name, strategies=["L1_pos_filtered"], refused=refused)
        yield changed("name model", "/extractor/embed", model=name)
        yield changed("name strategy", "/extractor/embed", strategy=name)
        yield changed("name scorer", "/scorer/score", scorer=name)
        yield changed("name source", "/scorer/import", source=name)
        yield post("name passages", "/scorer/train", {"params": {"concept": "causation"}, "passages_key": name})
        yield post(
            "name base", "/scorer/train", {**VERBS["/scorer/train"], "params": {"concept": "causation", "base": name}}
        )
        yield changed("name method", "/prober/direction", method=name)
    for name in ("/etc", "..", "no-such/model", "~nosuchuser", "x" * 5000, "a\x00b", "\ud800"):
        yield changed("name model", "/steerer/generate", model=name)
        yield changed("name model", "/steerer/v1/completions", model=name)


def shapes() -> Iterator[Case]:
    """Bodies that are no object, nested too deep, or larger than a service takes."""
    for path in VERBS:
        for body in (b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe{}", b"{}" * 2, b"\x00", b'{"a":1,"a":2}'):
            yield Case(0, "shape", "POST", path, (_JSON,), body, refused=True)
        yield post("deep", path, deep(100_000))
        yield post("deep", path, {**VERBS[path], next(iter(VERBS[path])): deep(20_000, '{"a":', "}")})
    for path in ("/pooler/annotate", "/scorer/score", "/prober/probe"):
        yield Case(0, "huge", "POST", path, (_JSON,), b'{"texts": ["' + b"x" * _HUGE + b'"]}')
        yield Case(0, "huge numbers", "POST", path, (_JSON,), b'{"texts": [' + b"1," * (_HUGE // 4) + b"1]}")


def tokens(token: str) -> Iterator[Case]:
    """No token, a wrong one, and headers that nearly hold one."""
    wrong = ("", "Bearer", "Bearer x", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Basic {token}")
    for path in VERBS:
        yield Case(0, "no token", "POST", path, (_JSON,), encode(VERBS[path]), refused=True)
        yield Case(0, "no token, no body", "POST", path, (), b"", refused=True)
    for value in (*wrong, "Bearer \xff\xfe", "Bearer " + "x" * 4000, token, f"Token {token}"):
        headers = (_JSON, ("authorization", value))
        yield Case(
            0, "wrong token", "POST", "/prober/direction", headers, encode(VERBS["/prober/direction"]), refused=True
        )
    for path in (f"/prober/direction?token={token}", f"/scorer/scorers?access_token={token}", "/steerer/v1/models"):
        yield Case(0, "token elsewhere", "GET", path, (("cookie", f"token={token}"),), refused=True)


def unknown_routes(bearer: tuple[str, str]) -> Iterator[Case]:
    """Routes and methods that there are not."""
    ways = ("", "x", "v1/chat/completions", "../extractor/embed", "%2e%2e/x", "generate/", "GENERATE", "x" * 4000)
    for service in (*SERVICES, "nobody", "-"):
        for way in (*ways, "%00", "%ff", "docs/../../x", ";x", "?x=%00&" + "a" * 3000):
            yield Case(0, "route", "GET", f"/{service}/{way}", (bearer,))
    for path in (
        "/",
        "//",
        "/-/healthz",
        "/-/routes",
        "/metrics",
        "/api/serve/applications/",
        "/extractor/openapi.json/x",
    ):
        yield Case(0, "route", "GET", path, (bearer,))
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEAD", "QUERY"):
        for path in ("/prober/probe", "/steerer/generate", "/scorer/score"):
            yield Case(0, "method", method, path, (bearer,), refused=method != "OPTIONS")
    for query in ("model=" + "x" * 5000, "model=%00", "model=..%2f..%2fx", "model=~nosuchuser", "model=%ed%a0%80"):
        yield Case(0, "query", "GET", f"/extractor/model?{query}", (bearer,), refused=True)
        yield Case(0, "query", "GET", f"/steerer/vectors?{query}", (bearer,), refused=True)


def media(bearer: tuple[str, str]) -> Iterator[Case]:
    """Content types that are not read, and bodies that are not what they say."""
    body = json.dumps(VERBS["/pooler/annotate"]).encode()
    types = (
        "",
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    )
    for kind in (*types, "application/json; charset=utf-16", "application/x-pickle", "x" * 3000, "application/json\t;"):
        yield Case(0, "media", "POST", "/pooler/annotate", (bearer, ("content-type", kind)), body)
    for coding in ("gzip", "br", "deflate, gzip", "x" * 500):
        headers = (bearer, _JSON, ("content-encoding", coding))
        yield Case(0, "coding", "POST", "/pooler/annotate", headers, body)
    headers_of = (
        b"",
        b"\x08" + b"\x00" * 7,
        b"\xff" * 8,
        b"\xff" * 7 + b"\x7f" + b"{}",
        b"\x40" + b"\x00" * 7 + b"{" * 64,
        PICKLE,
    )
    for content in headers_of:
        sent = (bearer, ("content-type", "application/vnd.safetensors"))
        yield Case(0, "safetensors", "POST", "/steerer/vectors", sent, content, refused=True)


def _with(bearer: tuple[str, str], group: Iterator[Case]) -> Iterator[Case]:
    for case in group:
        yield replace(case, headers=(bearer, *case.headers))


_WITH_TOKEN = (steering, sampling, costs, names, shapes)
