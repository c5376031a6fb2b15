"""Mean negative log-likelihood of texts under the unsteered model, batched in the engine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poolbench.errors import InputError
from poolbench_steerer.concurrency import OnDone, run_all
from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.errors import StateOverflowError


@dataclass(frozen=True)
class Scored:
    """Mean negative log-likelihood in nats per token, over `num_tokens` scored tokens."""

    mean_nll: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """Return exp of the mean negative log-likelihood. Raise StateOverflowError if it exceeds the largest float."""
        try:
            return math.exp(self.mean_nll)
        except OverflowError:
            raise StateOverflowError(
                f"the perplexity exp({self.mean_nll:.6g}) is beyond the largest number; the model finds this text "
                "impossible"
            ) from None


async def score_continuations(
    engine: SteeringEngine,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    on_done: OnDone | None = None,
    *,
    of_task: bool = False,
) -> list[Scored]:
    """Return the mean negative log-likelihood of each continuation given its prefix, in nats per token, unsteered.
    Raise InputError or PromptTooLongError for a pair of token ids that cannot be scored.
    """
    for index, (prefix, continuation) in enumerate(pairs):
        if not continuation or len(prefix) + len(continuation) < 2:
            raise InputError(f"text {index} has no token that could be scored; it needs a prefix or two tokens")
        engine.limits.check_room(len(prefix) + len(continuation), 0, f"text {index}")
    return await run_all([_score(engine, list(prefix), list(text), of_task) for prefix, text in pairs], on_done)


async def _score(engine: SteeringEngine, prefix: list[int], continuation: list[int], of_task: bool) -> Scored:
    logprobs = await engine.prompt_logprobs(prefix + continuation, of_task=of_task)
    scored = logprobs[max(len(prefix) - 1, 0) :]
    return Scored(-math.fsum(scored) / len(scored), len(scored))
