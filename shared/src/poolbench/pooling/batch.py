"""Apply strategies to hidden states with torch, on the device of a model and to kept states alike.

Every passage is pooled on its own slice of the states, so its vectors do not depend on padding or neighbours.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from poolbench.errors import CellError
from poolbench.pooling.context import Parts, Reduction, TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES, Answer, StrategySpec
from poolbench.pooling.signals import Signals
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.pooling.transfers import HostCopy, to_device

#: What became of one strategy on one passage: what to compute, or why it cannot be.
Outcome = Answer | CellError


@dataclass(frozen=True)
class Request:
    """A request to pool with a strategy and its parameters."""

    strategy: StrategySpec
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, strategy_id: str, params: Mapping[str, Any] | None = None) -> "Request":
        """Make the request from the id of a strategy and parameters, which are checked.

        Raise UnknownStrategyError for an unknown id, or ConfigError for invalid parameters.
        """
        strategy = STRATEGIES.get(strategy_id)
        resolved = strategy.resolve(params)
        return cls(replace(strategy, needs=strategy.needs_with(resolved)), resolved)

    @property
    def id(self) -> str:
        """Return the strategy's id."""
        return self.strategy.id

    def outcome(self, context: TokenContext) -> Outcome:
        """Return the strategy's answer for a passage, or the error that its row will hold."""
        try:
            return self.strategy.weigh(context, self.params)
        except CellError as error:
            return error


@dataclass(frozen=True)
class Weighing:
    """The outcomes of a batch that do not depend on the layer. The outcome of any other strategy is `None`.

    The host computes these outcomes while the device is still running the model.
    """

    requests: Sequence[Request]
    contexts: Sequence[TokenContext]
    fixed: Sequence[Sequence[Outcome | None]]
    # The same without the sinks of a passage, by its index and their positions: most layers have the same sinks.
    without_sinks: dict[tuple[int, bytes], list[Outcome | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, contexts: Sequence[TokenContext], requests: Sequence[Request]) -> "Weighing":
        """Compute the outcomes of each passage and request that do not depend on the layer."""
        return cls(requests, contexts, [_fixed(context, requests) for context in contexts])

    def at_layer(self, passage: int, context: TokenContext, sinks_T: np.ndarray) -> list[Outcome]:
        """Return the outcomes of a passage, given its context with a layer's signals and the sinks to leave out."""
        fixed = self.fixed[passage]
        if not sinks_T.any():
            return [
                request.outcome(context) if k is None else k for k, request in zip(fixed, self.requests, strict=True)
            ]
        rest, place = context.without(sinks_T), (passage, sinks_T.tobytes())
        if place not in self.without_sinks:
            requests = [request if request.strategy.leaves_out_sinks else None for request in self.requests]
            self.without_sinks[place] = _fixed(self.contexts[passage].without(sinks_T), requests)
        without, outcomes = self.without_sinks[place], list[Outcome]()
        for request, with_sinks, without_them in zip(self.requests, fixed, without, strict=True):
            leaves_out = request.strategy.leaves_out_sinks
            outcome = without_them if leaves_out else with_sinks
            outcomes.append(request.outcome(rest if leaves_out else context) if outcome is None else outcome)
        return outcomes


def _fixed(context: TokenContext, requests: Iterable[Request | None]) -> list[Outcome | None]:
    """Return the outcome of each request for a passage, or `None` for a strategy that depends on the layer."""
    return [None if r is None or r.strategy.per_layer else r.outcome(context) for r in requests]


class PooledBatch(NamedTuple):
    """The pooled vectors of a batch of passages at one layer.

    Attributes:
        vectors_BSD: Float32, NaN for an error. An outcome with P parts has NaN in its own row. Its parts are P further
            rows after the rows of the strategies (see `split_parts`).
        outcomes: One outcome per passage and strategy.
        num_sinks: Number of attention sinks in each passage.
    """

    vectors_BSD: np.ndarray
    outcomes: list[list[Outcome]]
    num_sinks: list[int]


def pool_layer(
    states: Sequence[Tensor],
    weighing: Weighing,
    signals: Sequence[Signals] | None = None,
    sinks: SinkRule = LEAVE_OUT,
) -> PooledBatch:
    """Pool one layer of a batch of passages with every strategy.

    Args:
        states: Hidden states of each passage over all its positions, [T, D]. Any float type, all on the same device.
        weighing: Requests and their fixed outcomes.
        signals: Captured signals of each passage at this layer. The signal `norms` is added here.
        sinks: The rule that decides which tokens are attention sinks, and whether sinks are left out.
    """
    steps = pooling_steps(states, weighing, lambda: signals or [{}] * len(states), sinks)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            pooled: PooledBatch = end.value
            return pooled


def pooling_steps(
    states: Sequence[Tensor], weighing: Weighing, signals: Callable[[], Sequence[Signals]], sinks: SinkRule
) -> Generator[None, None, PooledBatch]:
    """Pool one layer of a batch as `pool_layer` does, and pause where the host would wait for the device.

    The first step starts to copy norms to the host. The second computes weights of them, and starts to copy pooled
    vectors; it is the last to hold the states. The third returns the vectors.

    Args:
        signals: Function that returns the captured signals of each passage. It may wait for the device.
    """
    lengths, device = [len(state) for state in states], states[0].device
    norms = HostCopy(_norms(states))
    yield
    outcomes, contexts, num_sinks = _weighed(norms.wait(), lengths, weighing, signals(), sinks)
    weights_BST = _upload_weights(outcomes, lengths, device)
    pooled = [
        pool_passage(h_TD, weights_ST[:, : len(h_TD)], row, context)
        for h_TD, weights_ST, row, context in zip(states, weights_BST, outcomes, contexts, strict=True)
    ]
    vectors = HostCopy(torch.stack(pooled))
    del states, signals, weights_BST, pooled
    yield
    return PooledBatch(vectors.wait().numpy(), outcomes, num_sinks)


def weigh_layer(
    states: Sequence[Tensor], weighing: Weighing, signals: Sequence[Signals] | None, sinks: SinkRule
) -> tuple[list[list[Outcome]], list[TokenContext], list[int]]:
    """Return outcomes by passage and strategy, the passages without left-out sinks, and the numbers of sinks.

    The arguments are the arguments of `pool_layer`.
    """
    lengths = [len(state) for state in states]
    return _weighed(HostCopy(_norms(states)).wait(), lengths, weighing, signals or [{}] * len(states), sinks)


def _norms(states: Sequence[Tensor]) -> Tensor:
    """Return the L2 norms of all positions, for one transfer to the host."""
    return torch.cat([state.float().norm(dim=-1) for state in states])


def _weighed(
    norms: Tensor, lengths: Sequence[int], weighing: Weighing, signals: Sequence[Signals], sinks: SinkRule
) -> tuple[list[list[Outcome]], list[TokenContext], list[int]]:
    norms_by_passage = np.split(norms.double().numpy(), np.cumsum(lengths)[:-1])
    layer_signals = [{**by_name, "norms": n} for by_name, n in zip(signals, norms_by_passage, strict=True)]
    contexts = [context.at_layer(by_name) for context, by_name in zip(weighing.contexts, layer_signals, strict=True)]
    sink_masks = [sinks.find(n, context.of_text) for n, context in zip(norms_by_passage, contexts, strict=True)]
    left_out = [mask_T & sinks.leave_out for mask_T in sink_masks]
    outcomes = [weighing.at_layer(i, c, mask_T) for i, (c, mask_T) in enumerate(zip(contexts, left_out, strict=True))]
    remaining = [context.without(mask_T) for context, mask_T in zip(contexts, left_out, strict=True)]
    return outcomes, remaining, [int(mask_T.sum()) for mask_T in sink_masks]


def pool_passage(h_TD: Tensor, weights_ST: Tensor, outcomes: Sequence[Outcome], context: TokenContext) -> Tensor:
    """Pool one passage at one layer with all strategies: one matrix product, then the reductions.

    Args:
        h_TD: Hidden states over all positions.
        weights_ST: One row per strategy, and then the rows of parts. Rows of reductions and errors have no effect.
        outcomes: One outcome per strategy.
        context: The passage, which gives the positions that reductions read.

    Returns:
        Float32, the S vectors of the strategies and then the vectors of parts. Rows of errors and of strategies with
        parts are NaN.
    """
    h_TD = h_TD.float()
    pooled_SD = weights_ST @ h_TD
    for row, outcome in enumerate(outcomes):
        if isinstance(outcome, Reduction):
            pooled_SD[row] = REDUCTIONS[outcome.op](_real_states(h_TD, context))
        elif isinstance(outcome, CellError | Parts):
            pooled_SD[row] = torch.nan
    return pooled_SD


def split_parts(vectors_RD: np.ndarray, outcomes: Sequence[Outcome]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Split the rows of a passage into the strategies' vectors [S, D] and the parts [P, D] by strategy index."""
    parts, end = {}, len(outcomes)
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Parts):
            start, end = end, end + len(outcome.values)
            parts[index] = vectors_RD[start:end]
    return vectors_RD[: len(outcomes)], parts


def _median(h_TD: Tensor) -> Tensor:
    ordered = h_TD.sort(dim=0).values
    return (ordered[(len(h_TD) - 1) // 2] + ordered[len(h_TD) // 2]) / 2


#: Element-wise reductions over the tokens, [T, D] to [D].
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda h_TD: h_TD.amax(dim=0),
    "min": lambda h_TD: h_TD.amin(dim=0),
    "median": _median,
}


def _real_states(h_TD: Tensor, context: TokenContext) -> Tensor:
    real = context.real
    if real[-1] - real[0] + 1 == len(real):  # a slice is a view; an index is a copy
        return h_TD[real[0] : real[-1] + 1]
    return h_TD[to_device(real, h_TD.device)]


def _upload_weights(outcomes: Sequence[Sequence[Outcome]], lengths: Sequence[int], device: torch.device) -> Tensor:
    """Return the weights of a batch as one float32 tensor: B passages, S strategies and then parts, longest length."""
    num_parts = [sum(len(outcome.values) for outcome in row if isinstance(outcome, Parts)) for row in outcomes]
    weights = np.zeros((len(outcomes), len(outcomes[0]) + max(num_parts), max(lengths)), dtype=np.float32)
    for passage, row in enumerate(outcomes):
        rows = weights[passage, :, : lengths[passage]]
        parts = split_parts(rows, row)[1]
        for index, outcome in enumerate(row):
            if isinstance(outcome, Weights):
                rows[index] = outcome.values
            elif isinstance(outcome, Parts):
                parts[index][:] = outcome.values
    return to_device(weights, device)


def find_sinks(rule: SinkRule, norms_BT: Tensor, real_BT: Tensor) -> Tensor:
    """Return which tokens of a batch are attention sinks, as `SinkRule.find`, without waiting for the device."""
    norms_BT, num_B = norms_BT.double(), real_BT.sum(dim=1)
    ordered_BT = norms_BT.masked_fill(~real_BT, torch.inf).sort(dim=1).values
    middle_B2 = torch.stack([(num_B - 1) // 2, num_B // 2], dim=1).clamp(0, norms_BT.shape[1] - 1)
    median_B1 = ordered_BT.gather(1, middle_B2).mean(dim=1, keepdim=True)
    # The median of NumPy is NaN where a norm is, and no norm is above NaN. Sorting puts NaN behind the middle.
    unknown_B1 = (norms_BT.isnan() & real_BT).any(dim=1, keepdim=True)
    return real_BT & norms_BT.isfinite() & (norms_BT > rule.ratio * median_B1) & ~unknown_B1
