"""Honest clients beside the hostile ones: what they get must be what a quiet cluster gave them, bit by bit."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.trials.hostile.bodies import WIDTH

#: Hostile clients, control and health have addresses of their own.
_SOURCE = "127.0.0.2"
_TIMEOUT_S = 60.0
_LOADING_S = 300.0  # models are loaded with the first question
_PROMPTS = ["The report describes", "It rained, although", "Nobody knew that the"]
_TEXTS = ["It rained, although the sun shone.", "She left early and nobody saw her go.", "They never came back."]
#: What differs from answer to answer and says nothing of the work.
_VOLATILE = frozenset(("id", "created", "wall_s", "at"))


def train_scorer(address: str, token: str) -> str:
    """Train a scorer of `contrast` in the cluster on a few sentences; return its key."""
    passages = [
        {"text": f"The {noun} was {word}{end}", "label": label, "pair_id": f"{noun} {word}"}
        for noun in ("tide", "wind")
        for word in ("high", "low", "late", "cold", "slow")
        for end, label in ((". However, nobody sailed.", 1), (" and nobody sailed.", 0))
    ]
    params = {"concept": "contrast", "mode": "head", "epochs": 1, "num_windows": 1}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(
        f"{address}/scorer/train", json={"params": params, "passages": passages}, headers=headers, timeout=_LOADING_S
    )
    if not answer.is_success:
        raise SystemExit(f"the quiet cluster trains no scorer: {answer.status_code} {answer.text[:500]}")
    return str(answer.json()["scorer"])


@dataclass(frozen=True)
class Difference:
    """A control answer that was not what it had been."""

    question: str
    started_s: float
    ended_s: float
    expected: str
    received: str


@dataclass
class Control:
    """Questions with the answers of a quiet cluster."""

    address: str
    token: str
    scorer: str
    expected: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    num_compared: int = 0

    def __post_init__(self) -> None:
        self.questions = _questions(self.scorer)

    async def record(self) -> None:
        """Asks everything twice on a quiet cluster.

        Raises:
            SystemExit: Two answers differ, so that nothing can be compared with them.
        """
        async with self._client(_LOADING_S) as client:
            for path, body in self.questions:
                first, second = await self._ask(client, path, body), await self._ask(client, path, body)
                if first != second or not first.startswith("200"):
                    raise SystemExit(
                        f"the quiet cluster answers {path} differently or not: {first[:300]} {second[:300]}"
                    )
                self.expected.append(first)

    async def compare(self, until: asyncio.Event) -> None:
        """Asks in a loop until the event, and once more after it."""
        async with self._client() as client:
            while not until.is_set():
                await self._compare(client)
            await self._compare(client)

    async def _compare(self, client: httpx.AsyncClient) -> None:
        for (path, body), expected in zip(self.questions, self.expected, strict=True):
            started = time.monotonic()
            received = await self._ask(client, path, body)
            self.num_compared += 1
            if received != expected:
                question = f"{path} {json.dumps(body)[:200]}"
                self.differences.append(Difference(question, started, time.monotonic(), expected, received))

    def _client(self, timeout_s: float = _TIMEOUT_S) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.address,
            transport=httpx.AsyncHTTPTransport(local_address=_SOURCE),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=timeout_s,
        )

    async def _ask(self, client: httpx.AsyncClient, path: str, body: Any) -> str:
        try:
            answer = await client.post(path, json=body)
        except httpx.HTTPError as error:
            return f"no answer: {type(error).__name__} {error}"
        return f"{answer.status_code} {_canonical(answer)}"


def _canonical(answer: httpx.Response) -> str:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.dumps(whole([_stable(json.loads(event)) for event in events]), sort_keys=True)
    try:
        return json.dumps(_stable(answer.json()), sort_keys=True)
    except ValueError:
        return answer.text


def whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer of the events of a stream: tokens that are ready at once share an event, so their cuts vary."""
    answer: dict[str, Any] = {"choices": {}}
    for event in events:
        for choice in event.pop("choices", ()):
            joined = answer["choices"].setdefault(choice["index"], {"text": ""})
            joined["text"] += choice.pop("text")
            joined.update({name: value for name, value in choice.items() if value is not None})
        answer.update(event)
    return answer


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stable(part) for name, part in value.items() if name not in _VOLATILE}
    return [_stable(part) for part in value] if isinstance(value, list) else value


def _questions(scorer: str) -> list[tuple[str, Any]]:
    rng = random.Random(0)
    vector = [rng.gauss(0, 1) / WIDTH**0.5 for _ in range(WIDTH)]
    generate = {"prompts": _PROMPTS, "max_tokens": 12}
    steered = [
        {"vector": vector, "layer": layer, "operation": operation, "alpha": alpha}
        for layer, operation, alpha in (
            (2, "add", 3.0),
            (3, "add_preserving_norm", 3.0),
            (4, "clamp", 1.0),
            (2, "erase", 1.0),
        )
    ]
    vectors = [[rng.gauss(row % 2, 1) for _ in range(6)] for row in range(24)]
    probe = {"folds": 3, "num_bootstrap": 20, "num_permutations": 2, "num_control_words": 1}
    completion = {"prompt": _PROMPTS[0], "max_tokens": 8, "seed": 11, "temperature": 0.8}
    return [
        ("/steerer/generate", generate),
        *(("/steerer/generate", {**generate, "steering": edit}) for edit in steered),
        ("/steerer/perplexity", {"texts": _TEXTS}),
        ("/steerer/v1/completions", {**completion, "logprobs": 1}),
        ("/steerer/v1/completions", {**completion, "stream": True, "steering": steered[0]}),
        ("/extractor/embed", {"texts": _TEXTS, "model": "demo", "strategy": "A1_mean", "layer": 3}),
        (
            "/extractor/embed",
            {"texts": _TEXTS, "model": "demo", "strategy": "W2_last_k", "params": {"k": 3}, "layer": 5},
        ),
        ("/scorer/score", {"texts": _TEXTS, "scorer": scorer}),
        ("/prober/probe", {"vectors": vectors, "labels": [row % 2 for row in range(24)], "params": probe}),
        ("/prober/direction", {"vectors": vectors, "labels": [row % 2 for row in range(24)], "method": "C4"}),
        ("/pooler/annotate", {"texts": _TEXTS, "num_keywords": 2}),
    ]
