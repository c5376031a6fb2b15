"""Steering vector trained by gradient to make positive passages likelier and negative passages less likely.

Source: Cao et al. (2024), "Personalized Steering of Large Language Models: Versatile Steering Vectors Through
Bi-directional Preference Optimization" (BiPO). The vector v is added to the output of a block at every position,
and the loss of a pair is

    -log sigmoid(d beta [log p(positive | d v) / p(positive) - log p(negative | d v) / p(negative)])

where p without v is the unsteered model. We depart from the paper in three respects. Passages have no question before
them. Each step uses both signs d = 1 and -1, where the paper draws one of the two. Adam moves v in units of the norm of
the states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tables import PASSAGES, require_columns
from poolbench.directions import Direction
from poolbench.directions.pairs import pairs_by_id
from poolbench.directions.registry import unit_direction
from poolbench.errors import CellError, LayerError
from poolbench.statuses import Status
from poolbench.steps.extractor import TRAINED, TrainedParams
from poolbench_extractor.core import Progress
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.forward import gradients
from poolbench_extractor.forward.capture import Captured, capture, resumed
from poolbench_extractor.models.decoder import Decoder

#: A positive and a negative passage.
Pair = tuple[Encoded, Encoded]


@dataclass(frozen=True)
class PairBatch:
    """Passages of a batch of pairs, positives first, with their states at a layer of the unsteered model."""

    decoder: Decoder
    layer: int
    captured: Captured
    targets: gradients.Targets

    @classmethod
    def of(cls, decoder: Decoder, pairs: Sequence[Pair], layer: int, reading: Reading) -> "PairBatch":
        """Run the unsteered model on the pairs up to the layer."""
        batch = [positive for positive, _ in pairs] + [negative for _, negative in pairs]
        captured = capture(decoder, batch, [layer], sinks=reading.sinks, padding_side=reading.limits.padding_side)
        return cls(decoder, layer, captured, gradients.Targets.of(batch, captured.starts))

    @property
    def norm(self) -> float:
        """Return the median L2 norm of the states over all positions."""
        norms = [h_TD.float().norm(dim=-1) for h_TD in self.captured.states_of(self.layer)]
        return float(torch.cat(norms).median())

    def margins(self, delta_D: Tensor, beta: float) -> Tensor:
        """Return `beta` times the difference of two gains in log-likelihood, for each pair.

        The vector `delta_D` changes the log-likelihood of both passages. The difference is the gain of the positive
        minus the gain of the negative.
        """
        positive_P, negative_P = (self._log_likelihoods(delta_D) - self._unsteered).chunk(2)
        return beta * (positive_P - negative_P)

    @cached_property
    def _unsteered(self) -> Tensor:
        with torch.no_grad():
            return self._log_likelihoods(torch.zeros(self.decoder.width))

    def _log_likelihoods(self, delta_D: Tensor) -> Tensor:
        """Return the log-likelihood of each passage [B], with `delta_D` added to the states of every position."""
        h_BTD = self.captured.states[self.layer]
        output = resumed(
            self.decoder, self.captured, self.layer, (h_BTD.float() + delta_D.to(h_BTD.device)).to(h_BTD.dtype)
        )
        losses_N = gradients.head_losses(self.decoder, output, self.targets)
        row_N = self.targets.row.to(losses_N.device)
        return losses_N.new_zeros(len(self.targets.count)).index_add(0, row_N, -losses_N)


def trained_direction(
    decoder: Decoder,
    table: pa.Table,
    params: TrainedParams,
    *,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> tuple[Direction, list[float]]:
    """Train a steering vector. Return its unit direction and the loss of each step.

    Training uses the matched pairs. If the passages have no matched pairs, positives and negatives are paired in the
    order of their ids.

    Args:
        table: PASSAGES.

    Raises:
        LayerError: The model has no such block.
        CellError: `too_few` if no pair can be read, `failed` if the model is quantised or has no language-model head,
            `not_implemented` if it is an encoder, and `collapsed` or `non_finite` if the trained vector is.
    """
    layer = params.layer
    if not decoder.is_block(layer):
        raise LayerError(f"layer {layer} is out of range: {decoder.source} has blocks 0..{decoder.num_blocks - 1}")
    if (refusal := gradients.obstacle(decoder)) is not None:
        raise refusal
    pairs = _usable_pairs(decoder, table, reading)
    vector_D: Tensor = torch.zeros(decoder.width, requires_grad=True)
    # Adam moves no coordinate by more than its rate, so the vector by at most the rate times the root of the width.
    optimizer = torch.optim.Adam([vector_D], lr=params.learning_rate / decoder.width**0.5)
    scale, losses = None, list[float]()
    for step, numbers in enumerate(_order(len(pairs), params)):
        check_cancelled()
        batch = PairBatch.of(decoder, [pairs[number] for number in numbers], layer, reading)
        scale = scale or batch.norm
        optimizer.zero_grad()
        total = 0.0
        with decoder.lock:
            for sign in (1.0, -1.0):
                margins_P = sign * batch.margins(sign * scale * vector_D, params.beta)
                loss = -torch.nn.functional.logsigmoid(margins_P).mean() / 2
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
        optimizer.step()
        losses.append(total)
        if progress is not None:
            progress(step + 1, params.num_steps)
    direction = unit_direction(TRAINED, vector_D.detach().double().numpy() * (scale or 0.0), params.seed)
    return direction, losses


def _usable_pairs(decoder: Decoder, table: pa.Table, reading: Reading) -> list[Pair]:
    require_columns(table, PASSAGES, "the passages")
    ids, texts, pair_ids = (table[name].to_pylist() for name in ("passage_id", "text", "pair_id"))
    encoded = encode(decoder, PassageTexts(ids, texts), reading)
    pairs = [
        (encoded[positive], encoded[negative])
        for positive, negative in pairs_by_id(ids, pair_ids, np.array(table["label"].to_pylist()))
        if not any(_obstacle(encoded[row]) for row in (positive, negative))
    ]
    if not pairs:
        raise CellError(Status.TOO_FEW, f"none of {len(ids)} passages form a pair of both classes that the model reads")
    return pairs


def _obstacle(passage: Encoded) -> bool:
    """Return whether a passage cannot be used.

    The reason is an error, a length at which rotary frequencies change for the whole batch, or no token to predict.
    """
    return passage.error is not None or passage.stretched or gradients.obstacle_of(passage) is not None


def _order(num_pairs: int, params: TrainedParams) -> Iterator[list[int]]:
    """Yield the pair numbers of each step. Every pair is used once before any pair is used again."""
    rng, waiting = np.random.default_rng(params.seed), list[int]()
    for _ in range(params.num_steps):
        while len(waiting) < params.num_pairs:
            waiting += rng.permutation(num_pairs).tolist()
        yield waiting[: params.num_pairs]
        del waiting[: params.num_pairs]
