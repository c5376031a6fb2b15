"""Short requests to each service, one after the other, and how long each took."""

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

#: One short question to each service, by its verb.
BODIES: Mapping[str, dict[str, Any]] = {
    "extractor/embed": {"texts": ["It rained, although the sun shone."], "strategy": "A1_mean", "layer": 2},
    "pooler/annotate": {"texts": ["The harbour was quiet, although ships came."]},
    "pooler/pool": {"hidden_states": [[0.5, 1.0], [1.5, -1.0]], "strategies": ["A1_mean"]},
    "prober/probe": {
        "vectors": [[0.1, 1], [0.9, 0], [0.2, 1], [1.1, 0], [0.3, 1], [0.8, 0], [0.4, 1], [0.7, 0], [0, 1], [1, 0]],
        "labels": [0, 1] * 5,
        "params": {"folds": 2, "num_bootstrap": 100, "num_permutations": 1},
    },
    "prober/direction": {"vectors": [[0.1, 1], [0.9, 0], [0.2, 1], [1.1, 0]], "labels": [0, 1, 0, 1]},
    "scorer/score": {"texts": ["It rained, but they went."], "scorer": "contrast"},
    "steerer/generate": {"prompts": ["The report describes"], "max_tokens": 8},
    "steerer/perplexity": {"texts": ["The tide was high."]},
}
_THINK_S = 0.25
_TIMEOUT_S = 300.0


@dataclass
class Asked:
    """The requests of one verb."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return the figures; the percentiles are null without an answer."""
        figures: dict[str, Any] = {"num": len(self.latencies_s), "failures": self.failures[:3]}
        if len(self.latencies_s) < 2:
            return figures | {"p50_s": None, "p95_s": None, "max_s": None}
        p95 = statistics.quantiles(self.latencies_s, n=20, method="inclusive")[-1]
        return figures | {"p50_s": statistics.median(self.latencies_s), "p95_s": p95, "max_s": max(self.latencies_s)}


def ask(http: str, token: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Ask all verbs for a time, and at least twice; each client waits for its answer. Return figures by verb."""
    answers = {verb: Asked() for verb in BODIES}
    ends_at = time.monotonic() + seconds
    clients = [threading.Thread(target=_client, args=(http, token, verb, answers[verb], ends_at)) for verb in BODIES]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return {verb: latencies.summary() for verb, latencies in answers.items()}


def warm(http: str, token: str) -> None:
    """Ask each verb once, so that models are loaded. Raise HTTPStatusError for a request that fails."""
    with _open(http, token) as client:
        for verb, body in BODIES.items():
            client.post(f"/{verb}", json=body).raise_for_status()


def _client(http: str, token: str, verb: str, answers: Asked, ends_at: float) -> None:
    with _open(http, token) as client:
        while time.monotonic() < ends_at or len(answers.latencies_s) + len(answers.failures) < 2:
            began_s = time.monotonic()
            try:
                client.post(f"/{verb}", json=BODIES[verb]).raise_for_status()
                answers.latencies_s.append(time.monotonic() - began_s)
            except httpx.HTTPError as error:
                answers.failures.append(str(error) or type(error).__name__)
            time.sleep(_THINK_S)


def _open(http: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=http, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
