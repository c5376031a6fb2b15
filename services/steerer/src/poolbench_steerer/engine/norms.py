"""Residual norms on the calibration texts: the unit of relative strengths for ad-hoc requests, and attention sinks.

Queue tasks take the extractor's calibration table instead; the definition is the same, real tokens only.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.errors import InputError
from poolbench.pooling.sinks import LEAVE_OUT
from poolbench.texts import load_calibration
from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import GenerationRequest
from poolbench_steerer.tokens import Tokens

_NUM_NAMED = 10


@dataclass(frozen=True)
class TextNorms:
    """The real tokens of one text and their norms, float64 [layers, tokens]."""

    norms_LT: np.ndarray
    tokens: tuple[str, ...]

    @property
    def sinks(self) -> np.ndarray:
        """Return which tokens are sinks, at each layer."""
        real_T = np.ones(len(self.tokens), dtype=bool)
        return np.stack([LEAVE_OUT.find(norms_T, real_T) for norms_T in self.norms_LT])


async def measure_texts(engine: SteeringEngine, tokens: Tokens) -> list[TextNorms]:
    """Measure residual norms in an idle engine. Raise InputError unless the engine runs eagerly."""
    if not engine.eager:
        raise InputError("this engine does not run eagerly: give residual_norm with strength, or alpha")
    first = tokens.num_leading_special
    measured = []
    await engine.llm.reset_prefix_cache()
    calibration = await asyncio.to_thread(load_calibration)
    for text in calibration.column("text").to_pylist():
        ids = tokens.encode(text)[: engine.limits.window - 2]
        await engine.llm.collective_rpc("steering_tap_on", args=(first,))
        try:
            await engine.generate([GenerationRequest(ids, max_tokens=1)])
        finally:
            (norms,) = await engine.llm.collective_rpc("steering_tap_off")
        measured.append(TextNorms(np.array(norms), tuple(map(tokens.decode_one, ids[first:]))))
    return measured


def median_norms(texts: list[TextNorms]) -> list[float]:
    """Return the median over all tokens, by layer."""
    return [float(median) for median in np.median(_joined(texts), axis=1)]


def norms_report(texts: list[TextNorms]) -> dict[str, Any]:
    """Return norms and number of sinks by layer, and the commonest tokens that are sinks at any layer."""
    norms_LN, sinks_LN = _joined(texts), np.concatenate([text.sinks for text in texts], axis=1)
    sink_counts: Counter[str] = Counter()
    first: Counter[str] = Counter()
    for text in texts:
        for position in np.flatnonzero(text.sinks.any(axis=0)):
            sink_counts[text.tokens[position]] += 1
            first[text.tokens[position]] += position == 0
    columns = (np.median(norms_LN, axis=1), norms_LN.mean(axis=1), norms_LN.max(axis=1), sinks_LN.sum(axis=1))
    names = ("median_norm", "mean_norm", "largest_norm", "num_sinks")
    return {
        "num_texts": len(texts),
        "num_tokens": norms_LN.shape[1],
        "layers": [
            dict(zip(names, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)
        ],
        "sinks": [
            {"token": token, "count": count, "num_first": first[token]}
            for token, count in sink_counts.most_common(_NUM_NAMED)
        ],
    }


def _joined(texts: list[TextNorms]) -> np.ndarray:
    return np.concatenate([text.norms_LT for text in texts], axis=1)
