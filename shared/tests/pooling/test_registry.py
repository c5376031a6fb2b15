"""Strategies with parameters in their name: what they compute, how they are spelled, and which names are refused."""

import numpy as np
import pytest
import torch

from poolbench.errors import ConfigError, UnknownNameError, UnknownStrategyError
from poolbench.pooling import STRATEGIES, TokenContext
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.registry import select_strategies

STATES = torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [5.0, 6.0]])  # the first token is special
CONTEXT = TokenContext("p", np.zeros((5, 2), dtype=int), np.array([True] + [False] * 4))


def pooled(*names: str) -> dict[str, list[float]]:
    plan = Weighing.of([CONTEXT], [Request.of(name) for name in names])
    vectors, *_ = pool_layer([STATES], plan, [{}])
    return {name: vectors[0, i].tolist() for i, name in enumerate(names)}


def test_parameters_in_the_name_are_those_of_the_function() -> None:
    found = pooled("W2_last_k:k=2", "W2_last_k:k=3", "W1_first_k:k=1", "W2_last_k")
    assert found["W2_last_k:k=2"] == [4.0, 5.0]
    assert found["W2_last_k:k=3"] == pytest.approx([8 / 3, 4.0])
    assert found["W1_first_k:k=1"] == [1.0, 0.0]
    assert found["W2_last_k"] == [2.25, 3.0]  # 16 tokens: all of them


def test_a_name_with_parameters_pools_as_the_same_parameters_beside_the_name() -> None:
    assert STRATEGIES.get("W2_last_k:k=8").identity() == STRATEGIES.get("W2_last_k").identity({"k": 8})


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("W2_last_k:k=32", "W2_last_k:k=32"),
        ("W4_hierarchical:remainder=true", "W4_hierarchical:remainder=true"),
        ("W4_hierarchical:remainder=false", "W4_hierarchical"),
        ("W2_last_k:k=16", "W2_last_k"),  # the default: one name for one strategy
        ("S4_sif:a=1e-2", "S4_sif:a=0.01"),
        ("A7_random:share=1", "A7_random:share=1.0"),
    ],
)
def test_each_combination_has_one_name(name: str, spelled: str) -> None:
    assert [spec.id for spec in select_strategies([name, spelled])] == [spelled]


def test_only_parameters_tell_such_strategies_apart() -> None:
    base, other = select_strategies(["S4_sif", "S4_sif:a=0.1"])
    assert (other.family, other.version, other.needs, other.board) == (
        base.family, base.version, base.needs, base.board
    )  # fmt: skip
    assert other.common_component and other != base and "a = 0.1" in other.summary
    assert other.id not in {spec.id for spec in STRATEGIES.all()}


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [
        ("W2_lst_k:k=3", UnknownStrategyError, "did you mean W2_last_k"),
        ("card:k=3", UnknownStrategyError, "unknown strategy 'card'"),
        ("W4_hierarchical:chunk=3", UnknownNameError, "strategy W4_hierarchical .chunk.; did you mean chunks"),
        ("W2_last_k:j=3", UnknownNameError, "known: k"),
        ("A1_mean:k=3", ConfigError, "A1_mean has no parameter to set, got 'k'; those with some: W1_first_k"),
        ("L2_dependency_trigger:triggers=x", ConfigError, "no parameter to set"),
        ("W2_last_k:k=x", ConfigError, "k: Input should be a valid integer, got 'x'"),
        ("W2_last_k:k=1.5", ConfigError, "valid integer, got 1.5"),
        ("S1_attention:corrected=1", ConfigError, "corrected: Input should be a valid boolean, got 1"),
        ("W2_last_k:k=0", ConfigError, "greater than or equal to 1, got 0"),
        ("A7_random:share=2", ConfigError, "less than or equal to 1, got 2"),
        ("S4_sif:a=nan", ConfigError, "finite number, got nan"),
        ("W2_last_k:k", ConfigError, "'k' has no value; write W2_last_k:parameter=value"),
        ("W2_last_k:k=1:k=2", ConfigError, "'k' is given twice"),
    ],
)  # fmt: skip
def test_wrong_names_are_refused(name: str, error: type, expected: str) -> None:
    with pytest.raises(error, match=expected):
        select_strategies([name])


def test_a_name_with_parameters_takes_no_others_beside_it() -> None:
    assert Request.of("W2_last_k:k=8", {"k": 8}).params == {"k": 8}
    with pytest.raises(ConfigError, match="fixes its parameters; to choose them, name W2_last_k"):
        Request.of("W2_last_k:k=8", {"k": 9})
