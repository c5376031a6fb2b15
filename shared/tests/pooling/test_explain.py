"""Shares of tokens: they sum to the pooled projection, by every strategy, and are those computed by hand."""

import numpy as np
import pytest
import torch
from shared.tests.test_pooling_strategies import COUNTED, EXPECTED, PARAMS, SIGNALS, STATES, context

from poolbench.errors import CellError
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.context import TokenContext
from poolbench.pooling.explain import TokenShares, explain_layer
from poolbench.pooling.registry import STRATEGIES

DIRECTION = np.array([0.6, -0.8])
EVERY_SIGNAL = {**SIGNALS, "received": np.arange(9.0)}


@pytest.mark.parametrize("strategy_id", [*EXPECTED, "S1_attention:corrected=false", "W4_hierarchical:remainder=true"])
def test_contributions_sum_to_the_projection_of_the_vector(strategy_id: str) -> None:
    states = [torch.tensor(np.asarray(STATES), dtype=torch.float32)]
    plan = Weighing.of([context(signals=COUNTED)], [Request.of(strategy_id, PARAMS.get(strategy_id))])
    vectors, *_ = pool_layer(states, plan, [EVERY_SIGNAL])
    ((shares,),) = explain_layer(states, plan, [EVERY_SIGNAL], direction_D=DIRECTION)
    assert isinstance(shares, TokenShares) and shares.contributions_T is not None
    projection = float(vectors[0, 0] @ DIRECTION)
    assert shares.contributions_T.sum() == pytest.approx(projection, rel=1e-5, abs=1e-6)
    if strategy_id != "P2_first_token" and not STRATEGIES.get(strategy_id).whole_text:
        assert shares.weights_T[0] == 0  # BOS


def test_a_reduction_gives_each_dimension_to_the_token_that_has_its_value() -> None:
    states = [torch.tensor([[1.0, 5.0, 2.0], [3.0, 1.0, 2.0], [2.0, 4.0, 0.0], [0.0, 2.0, 1.0]])]
    passage = TokenContext("p", np.zeros((4, 2), dtype=int), np.zeros(4, dtype=bool))
    requests = [Request.of(name) for name in ("A2_max", "A3_min", "A5_median")]
    (row,) = explain_layer(states, Weighing.of([passage], requests), direction_D=np.array([1.0, 10.0, 100.0]))
    largest, smallest, median = row
    # Max: 3 of token 1, 5 of token 0, and 2 that tokens 0 and 1 share.
    np.testing.assert_allclose(largest.weights_T, [1.5 / 3, 1.5 / 3, 0, 0])
    np.testing.assert_allclose(largest.contributions_T, [50 + 100, 3 + 100, 0, 0])
    np.testing.assert_allclose(smallest.weights_T, [0, 1 / 3, 1 / 3, 1 / 3])
    # Medians 1.5, 3 and 1.5: half of two tokens each.
    np.testing.assert_allclose(median.weights_T.sum(), 1)
    np.testing.assert_allclose(median.contributions_T.sum(), 1.5 + 30 + 150)


def test_without_a_direction_there_are_weights_alone_and_parts_say_why() -> None:
    states = [torch.tensor(np.asarray(STATES), dtype=torch.float32)]
    signals = [{**EVERY_SIGNAL, "head_inflow": np.ones((2, 9))}]
    plan = Weighing.of([context()], [Request.of("A1_mean"), Request.of("S3_iti_probe")])
    ((mean, heads),) = explain_layer(states, plan, signals)
    assert mean.contributions_T is None and mean.weights_T.sum() == pytest.approx(1)
    assert isinstance(heads, CellError) and heads.status == "not_implemented"
