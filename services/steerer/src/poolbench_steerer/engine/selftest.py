"""Prove at start-up that steering works in this engine, with this model, on this device."""

from __future__ import annotations

import numpy as np

from poolbench.errors import ReceiptError
from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import GenerationRequest
from poolbench_steerer.plugin.bounds import max_change
from poolbench_steerer.plugin.spec import Edit, Steering

#: So large that the residual stream after the last block is the vector, up to a relative 1e-4 or so.
_OVERWHELMING = 1e6
_NUM_LOGPROBS = 5


async def self_test(engine: SteeringEngine) -> dict[str, float]:
    """Steer one token overwhelmingly after the last block, in every way, and compare with the head by hand.

    The final norm removes the scale, so next-token log-probabilities must be those of the norm and head on one
    vector alone, whatever the prompt. A coefficient of 0 must change nothing. Receipts are checked too.

    Returns:
        The largest differences found, in nats.

    Raises:
        ReceiptError: When the hook does not run, or does not do what was requested.
    """
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((engine.bank.width, 2)))  # orthogonal
    kept_id, other_id = await engine.register([basis[:, 0], basis[:, 1]])
    layer = engine.num_layers - 1
    ways = _ways(kept_id, other_id, layer, engine.limits.num_edits, _overwhelming(engine, kept_id, other_id))
    unchanged = Steering((Edit(kept_id, layer, 0.0),))
    made = await engine.generate([_request(steering) for steering in (None, unchanged, *ways.values())])
    plain, zero, *steered = [generation.first_logprobs for generation in made]
    by_hand = dict(enumerate(await engine.head_logprobs(kept_id)))
    found = {"coefficient_0_nats": _gap(plain, zero)}
    found |= {f"{way}_by_hand_nats": _gap(each, by_hand) for way, each in zip(ways, steered, strict=True)}
    moved = min(_gap(each, plain) for each in steered)
    tolerance = 1e-2 if engine.model.dtype == "float32" else 0.25
    if max(found.values()) > tolerance or moved <= tolerance:
        gaps = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        raise ReceiptError(
            f"steering self-test failed for {engine.model.id}: log-probabilities differ from what they must be by "
            f"{gaps} (allowed {tolerance}) and from unsteered ones by {moved:.3g} (must be more)"
        )
    return found


def _overwhelming(engine: SteeringEngine, *vector_ids: str) -> float:
    """Return the coefficient; in float16 the bound on changes limits it, which two edits share."""
    peak = sum(engine.bank.entry(vector_id).peak for vector_id in vector_ids)
    return min(_OVERWHELMING, 0.99 * max_change(engine.dtype) / peak)


def _ways(kept_id: str, other_id: str, layer: int, num_edits: int, alpha: float) -> dict[str, Steering]:
    """Return ways to make the stream the kept vector alone; the last erases another, orthogonal vector."""
    kept, other = Edit(kept_id, layer, alpha), Edit(other_id, layer, alpha)
    ways = {
        "add": (kept,),
        "add_preserving_norm": (Edit(kept_id, layer, _OVERWHELMING, "add_preserving_norm"),),
        "clamp": (Edit(kept_id, layer, alpha, "clamp"),),
        "erase": (kept, other, Edit(other_id, layer, 1.0, "erase")),
    }
    return {way: Steering(edits) for way, edits in ways.items() if len(edits) <= num_edits}


def _request(steering: Steering | None) -> GenerationRequest:
    prompt = (1, 2, 3)  # any tokens do: the outcome must not depend on them
    return GenerationRequest(prompt, max_tokens=1, steering=steering, logprobs=_NUM_LOGPROBS, ignore_eos=True)


def _gap(found: dict[int, float] | None, reference: dict[int, float] | None) -> float:
    """Return the largest absolute difference over the tokens of `found`; infinite if `reference` lacks one."""
    if not found or not reference:
        return float("inf")
    return max(abs(value - reference.get(token, float("inf"))) for token, value in found.items())
