"""Proves at start-up that steering works in this engine, with this model, on this device."""

from __future__ import annotations

import numpy as np

from poolbench.errors import ReceiptError
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.plugin.spec import Edit, Steering

#: So large that the residual stream after the last block is the vector, up to a relative 1e-4 or so.
_OVERWHELMING = 1e6
_NUM_LOGPROBS = 5


async def self_test(engine: SteeringEngine) -> dict[str, float]:
    """Steers one token overwhelmingly after the last block and compares with the head applied by hand.

    The final norm forgets the scale, so next-token log-probabilities must be those of the norm and head on
    the vector alone, whatever the prompt. A coefficient of 0 must change nothing. Receipts are checked too.

    Returns:
        The largest differences found, in nats.

    Raises:
        ReceiptError: When the hook does not fire, or does not do what was asked.
    """
    vector = np.random.default_rng(0).standard_normal(engine.bank.width).astype(np.float32)
    (vector_id,) = await engine.register([vector / np.linalg.norm(vector)])
    layer = engine.num_layers - 1
    plain, zero, steered = await engine.generate(
        [
            _request(None),
            _request(Steering((Edit(vector_id, layer, 0.0),))),
            _request(_strong(vector_id, layer)),
        ]
    )
    by_hand = await engine.head_logprobs(vector_id)
    unchanged = _gap(plain.first_logprobs, zero.first_logprobs)
    expected = _gap(steered.first_logprobs, dict(enumerate(by_hand)))
    moved = _gap(steered.first_logprobs, plain.first_logprobs)
    tolerance = 1e-2 if engine.model.dtype == "float32" else 0.25
    if unchanged > tolerance or expected > tolerance or moved <= tolerance:
        raise ReceiptError(
            f"steering self-test failed for {engine.model.id}: log-probabilities moved by {unchanged:.3g} at "
            f"coefficient 0, differ by {expected:.3g} from those by hand (both allowed {tolerance}) and by "
            f"{moved:.3g} from unsteered ones (must be more)"
        )
    return {"coefficient_0_nats": unchanged, "by_hand_nats": expected}


def _strong(vector_id: str, layer: int) -> Steering:
    return Steering((Edit(vector_id, layer, _OVERWHELMING),))


def _request(steering: Steering | None) -> GenerationRequest:
    prompt = (1, 2, 3)  # any tokens do: the outcome must not depend on them
    return GenerationRequest(prompt, max_tokens=1, steering=steering, logprobs=_NUM_LOGPROBS, ignore_eos=True)


def _gap(found: dict[int, float] | None, reference: dict[int, float] | None) -> float:
    """Largest absolute difference over the tokens of ``found``; infinite for a token ``reference`` lacks."""
    if not found or not reference:
        return float("inf")
    return max(abs(value - reference.get(token, float("inf"))) for token, value in found.items())
