"""The score of pooled states, from the scores of their tokens."""

from collections.abc import Sequence

import numpy as np

from poolbench.errors import PoolbenchError
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES

#: Strategies whose weights cannot be had from the number of tokens, though they ask for nothing else.
_OF_THE_WHOLE_TEXT = {
    "P2_first_token": "it reads the first position of the prompt",
    "A7_random": "it draws by the id of a passage",
}


def pooled_score(strategy: str, scores: Sequence[float], offset: float) -> tuple[float | None, str | None]:
    """Return the score of the pooled state of new tokens, or None and why it cannot be had from their scores.

    Weights a_t of a strategy give w . sum(a_t h_t) + b = sum(a_t (s_t - b)) + b, where s_t = w.h_t + b.

    Args:
        scores: s_t of each token.
        offset: b.
    """
    try:
        spec = STRATEGIES.get(strategy)
        if reason := _OF_THE_WHOLE_TEXT.get(spec.base or spec.id):
            return None, f"{strategy} cannot pool new tokens alone: {reason}"
        if spec.needs:
            return None, f"{strategy} needs {', '.join(spec.needs)}, which is not known of new tokens"
        answer = spec.weigh(TokenContext("", np.empty((0, 2), np.int64), np.zeros(len(scores), dtype=bool)))
    except PoolbenchError as error:
        return None, str(error)
    if not isinstance(answer, Weights):
        return None, f"{strategy} takes each number of the states by itself, which scores do not tell"
    return float(answer.values @ (np.asarray(scores) - offset)) + offset, None
