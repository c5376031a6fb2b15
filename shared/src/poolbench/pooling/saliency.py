"""Strategies whose weights come from the model or from the run's texts: attention, loss gradients, counts."""

from typing import Annotated

import numpy as np
from pydantic import Field

from poolbench.errors import CellError
from poolbench.pooling.basic import CARD
from poolbench.pooling.context import Parts, TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench.statuses import Status


@STRATEGIES.register(
    "S1_attention",
    version=1,
    family="saliency",
    summary="weight of token j proportional to the mean over heads of sum over q >= j of (q + 1) A[q, j] / (T - j)",
    needs=("inflow",),
    reference=CARD + "; corrected so that uniform causal attention weighs every token alike",
    switches=("corrected",),
    needs_switched=("received",),
)
def attention(context: TokenContext, *, corrected: bool = True) -> Weights:
    """Weigh by the mean over heads of sum over q >= j of (q + 1) A[q, j] / (T - j).

    Indices count real tokens; each row of A is normalised over them. Without `corrected`, as in the reference, the
    weight is the mean of A[q, j] over heads and queries, which is high for early tokens because more queries see them.
    """
    return context.proportional_to(context.require("inflow" if corrected else "received"))


@STRATEGIES.register(
    "S2_gradient",
    version=1,
    family="saliency",
    summary="weight of token t proportional to the L2 norm of dL/dh_t, with L the mean next-token loss",
    needs=("gradient",),
    reference=CARD,
)
def gradient(context: TokenContext) -> Weights:
    """Weigh by the L2 norm of dL/dh_t, with h_t the token's state at the layer.

    L is the mean negative log-likelihood of the passage's real tokens that have a position before them. A BOS, if there
    is one, predicts the first token. The last token predicts nothing and has weight 0.
    """
    return context.proportional_to(context.require("gradient"))


@STRATEGIES.register(
    "S3_iti_probe",
    version=1,
    family="saliency",
    summary="mean over the ceil(H/4) heads of highest probe AUROC, each pooled by its own attention inflow as in S1",
    needs=("head_inflow", "labels"),
    reference=CARD + "; heads are ranked inside the training fold only",
    readout="best_heads",
    on_request=True,  # as many vectors a passage as the layer has heads
)
def head_attention(context: TokenContext) -> Parts:
    """Weigh the tokens separately for every attention head, by the head's inflow.

    The readout learns later which heads count.
    """
    return context.parts_proportional_to(context.require("head_inflow"))


@STRATEGIES.register(
    "S4_sif",
    version=1,
    family="saliency",
    summary="weight a / (a + p(token)) / T, then less the first singular direction of all train vectors",
    needs=("frequency",),
    reference="Arora et al. (2017), A simple but tough-to-beat baseline for sentence embeddings",
    board="extended",
    common_component=True,
)
def smooth_inverse_frequency(context: TokenContext, *, a: Annotated[float, Field(gt=0, le=1e6)] = 1e-3) -> Weights:
    """Weigh the real tokens by a / (a + p) and average. A token that does not occur in the train texts has p = 0.

    Raise CellError if the tokens were not counted.
    """
    real = context.real
    values = np.zeros(context.num_positions)
    values[real] = a / (a + context.require("frequency")[real]) / len(real)
    return Weights(values)


def _learned_by_the_prober(strategy: str, readout: str, summary: str, reference: str) -> None:
    """Register a strategy whose weights the prober learns from hidden states, for each labeling and fold.

    The strategy needs stored states of all tokens, so that it is measured on request only.
    """

    @STRATEGIES.register(
        strategy,
        version=1,
        family="saliency",
        summary=summary,
        needs=("states", "labels"),
        reference=reference,
        board="extended",
        readout=readout,
        on_request=True,
    )
    def weights(context: TokenContext) -> Parts:
        """Raise CellError, because only the prober can compute the weights."""
        reason = f"{strategy} has no weights of its own; the prober learns them from kept states"
        raise CellError(Status.FAILED, reason)


_SCORES = "McKenzie et al. (2025), Detecting high-stakes interactions with activation probes"
_learned_by_the_prober(
    "X1_learned_query",
    "learned_query",
    "weight of token t is the softmax of h_t . q / sqrt(D), with one learned query q",
    "Lin et al. (2017), A structured self-attentive sentence embedding, with one query",
)
_learned_by_the_prober(
    "R1_mean_score",
    "mean_score",
    "mean probability that a probe of single tokens gives, times its unit weights",
    _SCORES,
)
_learned_by_the_prober(
    "R2_max_score", "max_score", "highest log-odds that a probe of single tokens gives, times its unit weights", _SCORES
)
