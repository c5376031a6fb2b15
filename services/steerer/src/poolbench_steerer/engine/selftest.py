"""Prove at start-up that steering works in this engine, with this model, on this device."""

from collections.abc import Sequence

import numpy as np

from poolbench.errors import ReceiptError
from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import GenerationRequest
from poolbench_steerer.plugin.bank import max_change
from poolbench_steerer.plugin.spec import Condition, Edit, Reading, Steering
from poolbench_steerer.plugin.state import NUM_WATCHED

_PROMPT = tuple(range(1, NUM_WATCHED + 1))  # any tokens do; the last one's stream is the last that the worker keeps
_NUM_LOGPROBS = 5


async def self_test(engine: SteeringEngine) -> dict[str, float]:
    """Steer one token after the last block with every operation, and compare with a reference computation.

    The reference applies the formula of the operation, the norm and the head to the residual stream that the worker
    recorded before the edit, so it is exact at any scale. Coefficients are as large as the stream, to detect a change
    that is missing, made twice or made to a part of the stream. A coefficient of 0 must change nothing. Receipts are
    checked too. An addition with a condition acts on one side of the threshold, and changes nothing on the other side.

    Returns:
        The largest differences, in nats.

    Raises:
        ReceiptError: The hook does not run, or does not apply the requested edits.
    """
    plain, stream, _ = await _run(engine, None)
    size = float(np.linalg.norm(stream))
    if not 0 < size < np.inf:
        raise _failed(engine, f"the residual stream after the last block was seen with norm {size:g}")
    vectors = await _vectors(engine, stream / size)
    layer, alpha = engine.num_layers - 1, _coefficient(engine, list(vectors), size)
    random_id, halfway_id = vectors
    ways = _ways(random_id, halfway_id, layer, engine.limits.num_edits, alpha)
    # Half of the stream's projection on the vector halfway, which is size / sqrt(2).
    for side in ("above", "below"):
        where = Condition(halfway_id, layer, size / 8**0.5, side == "above")
        ways[f"where_{side}"] = Steering((Edit(random_id, layer, alpha),), where=where)
    unchanged, _, _ = await _run(engine, Steering((Edit(random_id, layer, 0.0),)))
    gaps, moved, largest = {"coefficient_0_nats": _gap(unchanged, plain)}, float("inf"), 0.0
    for way, steering in ways.items():
        steered, met, _ = await _run(engine, steering)
        edits = _acting(steering, met, vectors)
        logits = await engine.head_logits(edited(met, edits, vectors))
        gaps[f"{way}_by_hand_nats"] = _gap(steered, dict(enumerate(_log_softmax(logits))))
        largest = max(largest, *(abs(float(logits[token])) for token in steered or ()))
        moved = min(moved, _gap(steered, plain)) if edits else moved
    _judge(engine, gaps, moved, _allowed(engine.dtype, largest))
    for steering in ways.values():
        _, met, score = await _run(engine, steering, halfway_id)
        left = edited(met, _acting(steering, met, vectors), vectors)
        _judge_score(engine, score, left, vectors[halfway_id])
    return gaps


def edited(stream: np.ndarray, edits: Sequence[Edit], vectors: dict[str, np.ndarray]) -> np.ndarray:
    """Apply edits to a stream [D] one after the other, by the formulas of `Edit`, in float64."""
    for edit in edits:
        vector = vectors[edit.vector_id].astype(np.float64)
        unit = vector / np.linalg.norm(vector)
        if edit.operation == "clamp":
            stream = stream + (edit.alpha - stream @ unit) * unit
        elif edit.operation == "erase":
            stream = stream - edit.alpha * (stream @ unit) * unit
        else:
            moved = stream + edit.alpha * vector
            scale = np.linalg.norm(stream) / np.linalg.norm(moved) if edit.operation == "add_preserving_norm" else 1.0
            stream = scale * moved
    return stream


def _acting(steering: Steering | None, stream: np.ndarray, vectors: dict[str, np.ndarray]) -> Sequence[Edit]:
    """Return the edits that act on a stream [D]: none where the condition does not hold."""
    if steering is None:
        return ()
    if (where := steering.where) is not None:
        vector = vectors[where.vector_id].astype(np.float64)
        if (stream @ vector / np.linalg.norm(vector) > where.threshold) != where.above:
            return ()
    return steering.applied


async def _vectors(engine: SteeringEngine, direction: np.ndarray) -> dict[str, np.ndarray]:
    """Register a random unit vector, and one halfway between it and the stream, of which an erasure removes much."""
    random = np.random.default_rng(0).standard_normal(engine.bank.width)
    random -= (random @ direction) * direction
    random /= np.linalg.norm(random)
    vectors = [vector.astype(np.float32) for vector in (random, (random + direction) / np.sqrt(2))]
    return dict(zip(await engine.register(vectors), vectors, strict=True))


def _coefficient(engine: SteeringEngine, vector_ids: Sequence[str], size: float) -> float:
    """Return the size of the stream, or less in float16, whose bound on changes two edits share."""
    peak = sum(engine.bank.entry(vector_id).peak for vector_id in vector_ids)
    return min(size, 0.99 * max_change(engine.dtype) / peak)


def _ways(random_id: str, halfway_id: str, layer: int, num_edits: int, alpha: float) -> dict[str, Steering | None]:
    """Return ways to steer; those with more edits than the engine takes are left out."""
    ways: dict[str, tuple[Edit, ...]] = {
        "add": (Edit(random_id, layer, alpha),),
        "add_preserving_norm": (Edit(random_id, layer, alpha, "add_preserving_norm"),),
        "clamp": (Edit(halfway_id, layer, -alpha, "clamp"),),
        "erase": (Edit(halfway_id, layer, 1.0, "erase"),),
        "together": (Edit(random_id, layer, -alpha), Edit(halfway_id, layer, alpha, "clamp")),
    }
    return {"unsteered": None} | {way: Steering(edits) for way, edits in ways.items() if len(edits) <= num_edits}


async def _run(
    engine: SteeringEngine, steering: Steering | None, read_id: str | None = None
) -> tuple[dict[int, float] | None, np.ndarray, float]:
    """Return the likeliest next tokens of the prompt, the stream that the edits met, float64 [D], and its score."""
    readings = (Reading(read_id, engine.num_layers - 1),) if read_id is not None else ()
    request = GenerationRequest(
        _PROMPT, max_tokens=1, steering=steering, logprobs=_NUM_LOGPROBS, ignore_eos=True, readings=readings
    )
    (generation,) = await engine.generate([request])
    score = generation.scores[0][0] if readings else 0.0
    return generation.first_logprobs, (await engine.watched_streams())[-1].astype(np.float64), score


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _gap(logprobs: dict[int, float] | None, reference: dict[int, float] | None) -> float:
    """Return the largest absolute difference over the tokens of `logprobs`; infinite if `reference` lacks one."""
    if not logprobs or not reference:
        return float("inf")
    return float(max(abs(value - reference.get(token, float("inf"))) for token, value in logprobs.items()))


def _rounding(dtype: str) -> float:
    return {"float32": 2.0**-23, "float16": 2.0**-10}.get(dtype, 2.0**-7)


def _allowed(dtype: str, largest_logit: float) -> float:
    """Return the difference that rounding explains; logits are rounded in the model's type, so it grows with them."""
    floor = 0.01 if dtype == "float32" else 0.25
    return max(floor, (2 * _rounding(dtype) + 1e-5) * largest_logit)


def _judge(engine: SteeringEngine, gap_by_check: dict[str, float], moved: float, allowed: float) -> None:
    """Raise ReceiptError if a difference is too large, or if steering moved too little to tell.

    A model with small logits moves less than a coarse type may differ: there, four times the difference will do.
    """
    needed = min(allowed, 4 * max(gap_by_check.values()))
    if max(gap_by_check.values()) <= allowed and moved > needed:
        return
    gaps = ", ".join(f"{name} {value:.3g}" for name, value in gap_by_check.items())
    raise _failed(
        engine,
        f"log-probabilities differ from what they must be by {gaps} (allowed {allowed:.3g}) and from unsteered ones "
        f"by {moved:.3g} (must be above {needed:.3g})",
    )


def _judge_score(engine: SteeringEngine, score: float, stream: np.ndarray, vector: np.ndarray) -> None:
    """Raise ReceiptError if a score is not the projection of the edited stream, up to the rounding of the states."""
    by_hand, allowed = stream @ vector / np.linalg.norm(vector), 8 * _rounding(engine.dtype) * np.linalg.norm(stream)
    if not abs(score - by_hand) <= allowed + 1e-5 * np.linalg.norm(stream):
        raise _failed(engine, f"a direction was read as {score:.6g}, not as {by_hand:.6g}")


def _failed(engine: SteeringEngine, measured: str) -> ReceiptError:
    return ReceiptError(
        f"steering self-test failed for {engine.model.id} in {engine.dtype}: {measured}; texts steered in it would "
        "prove nothing: use another model, and report this one with the versions of vLLM and Transformers"
    )
