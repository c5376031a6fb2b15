"""The unit of relative strengths for ad-hoc requests: median residual norms on the calibration texts.

Queue tasks take the extractor's calibration table instead; the definition is the same, real tokens only.
"""

from __future__ import annotations

from poolbench.corpora.openings import load_calibration
from poolbench.errors import InputError
from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import GenerationRequest
from poolbench_steerer.tokens import Tokens


async def measure_norms(engine: SteeringEngine, tokens: Tokens) -> list[float]:
    """Return median residual norms in an engine without other work; raise InputError unless it runs eagerly."""
    if not engine.eager:
        raise InputError("this engine does not run eagerly: give residual_norm with strength, or alpha")
    texts = load_calibration().column("text").to_pylist()
    num_special = tokens.num_leading_special
    encoded = [tokens.encode(text)[: engine.limits.window - 2] for text in texts]
    await engine.llm.reset_prefix_cache()
    await engine.llm.collective_rpc("steering_tap_on", args=(num_special,))
    try:
        await engine.generate([GenerationRequest(ids, max_tokens=1) for ids in encoded])
    finally:
        (medians,) = await engine.llm.collective_rpc("steering_tap_off")
    return list(medians)
