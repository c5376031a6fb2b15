"""Every strategy by hand on small matrices: its vector, the shares of its tokens, and its parameters in its name."""

import numpy as np
import pytest
import torch

from poolbench.errors import CellError, ConfigError, UnknownNameError, UnknownStrategyError
from poolbench.pooling import STRATEGIES, TokenContext, Words
from poolbench.pooling.batch import Request, Weighing, pool_layer, split_parts
from poolbench.pooling.explain import TokenShares, explain_layer
from poolbench.pooling.registry import StrategySpec, select_strategies
from poolbench.readouts import READOUTS

# "The cat sat. Dogs ran home" behind a BOS; "Dogs" is split in two, " ran" carries its space.
TEXT = "The cat sat. Dogs ran home"
OFFSETS = np.array([[0, 0], [0, 3], [4, 7], [8, 11], [11, 12], [13, 15], [15, 17], [17, 21], [22, 26]])
SPECIAL = np.array([True] + [False] * 8)
STATES = np.array([[9, 9], [1, 0], [0, 2], [3, 4], [-1, 0], [2, 2], [0, -2], [6, 8], [5, 0]], dtype=np.float32)
REAL = STATES[1:]
WORDS = Words.from_row(
    {
        "passage_id": "p",
        "word_start": [0, 4, 8, 11, 13, 18, 22],
        "word_end": [3, 7, 11, 12, 17, 21, 26],
        "upos": ["DET", "NOUN", "VERB", "PUNCT", "NOUN", "VERB", "ADV"],
        "dep": ["det", "nsubj", "root", "punct", "nsubj", "conj", "advmod"],
        "head": [1, 2, 2, 2, 5, 2, 5],
        "lemma": ["the", "cat", "sit", ".", "dog", "run", "home"],
        "entity": ["", "ANIMAL", "", "", "", "", ""],
        "sentence": [0, 0, 0, 0, 1, 1, 1],
        "clause": [0, 0, 0, 0, 1, 1, 1],
        "keyword": [False, True, False, False, True, False, False],
    }
)
NORMS = np.linalg.norm(STATES, axis=1)
INFLOW = np.array([100.0, 1, 1, 1, 1, 1, 1, 1, 3])
HEAD_INFLOW = np.array([INFLOW, np.r_[50.0, 0, 0, 0, 0, 0, 0, 1, 3]])
GRADIENTS = np.array([[7, 7], [3, 4], [0, 1], [0, 0], [1, 0], [1, -1], [0, 2], [4, -3], [0, 0]], dtype=np.float32)
SIGNALS = {
    "norms": NORMS,
    "inflow": INFLOW,
    "head_inflow": HEAD_INFLOW,
    "gradient": np.linalg.norm(GRADIENTS, axis=1),  # 5 1 0 1 sqrt2 2 5 0 on the real tokens
    "gradient_dot": (GRADIENTS * STATES).sum(axis=1),  # 3 2 0 -1 0 -4 0 0
    "frequency": np.array([0.5, 1e-3, 0, 3e-3, 1e-3, 0, 0, 0, 9e-3]),
}
COUNTED = {"frequency": SIGNALS["frequency"]}  # known at every layer, before the forward pass


def context(**changes: object) -> TokenContext:
    values = {"passage_id": "p", "offsets": OFFSETS, "special": SPECIAL, "words": WORDS, **changes}
    return TokenContext(**values)


def pooled(strategy_id: str, params: dict | None = None, side: str = "right") -> np.ndarray:
    """The passage's vector out of a batch that is padded with NaN on one side, beside a longer neighbour."""
    length, longest = len(STATES), len(STATES) + 4
    padded_BLD = torch.full((2, longest, 2), torch.nan)
    rows = slice(0, length) if side == "right" else slice(longest - length, longest)
    padded_BLD[0, rows] = torch.from_numpy(STATES)
    padded_BLD[1] = 7.0
    neighbour = TokenContext("n", np.zeros((longest, 2), dtype=int), np.zeros(longest, dtype=bool), words=WORDS)
    neighbour = neighbour.at_layer({"frequency": np.zeros(longest)})
    plan = Weighing.of([context(signals=COUNTED), neighbour], [Request.of(strategy_id, params)])
    signals = [SIGNALS, {name: np.ones(longest) for name in SIGNALS}]
    vectors, outcomes, _ = pool_layer([padded_BLD[0, rows], padded_BLD[1]], plan, signals)
    if isinstance(outcomes[0][0], CellError):
        raise outcomes[0][0]
    return vectors[0, 0]


#: Parameters of the rows below, where the defaults would take the whole passage or nothing.
PARAMS = {
    "W1_first_k": {"k": 3},
    "W2_last_k": {"k": 3},
    "W3_middle_k": {"k": 5},
    "W4_hierarchical": {"chunks": 3},
    "L2_dependency_trigger": {"triggers": ["run", "The cat"]},
}
# One row per strategy, computed by hand from the eight real tokens
#   The (1, 0)  cat (0, 2)  sat (3, 4)  . (-1, 0)  Do (2, 2)  gs (0, -2)  ran (6, 8)  home (5, 0)
# with L2 norms 1, 2, 5, 1, sqrt 8, 2, 10, 5 and sum (16, 14).
EXPECTED = {
    "P1_last_token": [5, 0],
    "P2_first_token": [9, 9],
    "P3_first_content": [1, 0],
    "A1_mean": [2, 1.75],
    "A2_max": [6, 8],
    "A3_min": [-1, -2],
    "A4_norm_weighted": (NORMS[1:, None] * REAL).sum(0) / NORMS[1:].sum(),
    "A5_median": [1.5, 1],
    "A6_sum": [16, 14],
    "A8_unit_mean": [(1 + 0 + 0.6 - 1 + 0.5**0.5 + 0 + 0.6 + 1) / 8, (1 + 0.8 + 0.5**0.5 - 1 + 0.8) / 8],
    "A9_position_weighted": (np.arange(1, 9)[:, None] * REAL).sum(0) / 36,
    "A7_random": [6 / 4, 2],  # The cat sat Do: what the passage id "p" draws; stored vectors rest on it
    "A10_mean_sqrt_len": [16 / 8**0.5, 14 / 8**0.5],
    "A11_mean_all": [(16 + 9) / 9, (14 + 9) / 9],
    "W1_first_k": [4 / 3, 2],  # The cat sat
    "W2_last_k": [11 / 3, 2],  # gs ran home
    "W3_middle_k": [4 / 5, 6 / 5],  # cat sat . Do gs
    "W4_hierarchical": [(4 / 3 + 1 / 3 + 11 / 2) / 3, (2 + 0 + 4) / 3],  # chunks of 3, 3 and 2
    "W2_last_4": [13 / 4, 2],
    "W2_last_8": [2, 1.75],
    "S1_attention": [(16 + 2 * 5) / 10, 14 / 10],
    "S2_gradient": [(34 + 2 * 2**0.5) / (14 + 2**0.5), (38 + 2 * 2**0.5) / (14 + 2**0.5)],
    "G1_input_x_gradient": [(3 * 1 + 1 * -1) / 10, (2 * 2 + 4 * -2) / 10],
    # a / (a + p) is 1/2 for The and ".", 1/4 for sat, 1/10 for home, and 1 for what the train texts lack
    "S4_sif": [(0.5 + 0 + 0.75 - 0.5 + 2 + 0 + 6 + 0.5) / 8, (0 + 2 + 1 + 0 + 2 - 2 + 8 + 0) / 8],
    "L1_pos_filtered": REAL[[1, 2, 4, 5, 6, 7]].mean(0),
    "L2_dependency_rel": [6, 8],
    "L3_entity": [0, 2],
    "L4_clause": (REAL[:4].mean(0) + REAL[4:].mean(0)) / 2,
    "L5_keyword": REAL[[1, 4, 5]].mean(0),
    "L6_sentence": (REAL[:4].mean(0) + REAL[4:].mean(0)) / 2,
    # "run" is the head of Dogs and home; "The cat" is two lemmas in a row, and governs nothing else.
    "L2_dependency_trigger": [(1 + 0 + 2 + 0 + 6 + 5) / 6, (0 + 2 + 2 - 2 + 8 + 0) / 6],
    "L7_subword_root": [(1 + 0 + 3 + 2 + 6 + 5) / 6, (0 + 2 + 4 + 2 + 8 + 0) / 6],  # neither "." nor "gs"
    "L8_svo": [(0 + 3 + 2 + 0 + 6) / 5, (2 + 4 + 2 - 2 + 8) / 5],  # cat sat, Dogs ran
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("strategy_id", EXPECTED)
def test_vector_by_hand(strategy_id: str, side: str) -> None:
    found = pooled(strategy_id, PARAMS.get(strategy_id), side)
    np.testing.assert_allclose(found, EXPECTED[strategy_id], rtol=1e-6, atol=1e-7)


def test_every_strategy_has_a_hand_computation() -> None:
    drawn = {
        "S3_iti_probe",
        "X1_learned_query",
        "R1_mean_score",
        "R2_max_score",
    }  # learned by the prober, with tests of their own
    assert {spec.id for spec in STRATEGIES.all()} == set(EXPECTED) | drawn


def test_what_keys_of_earlier_runs_hold_of_a_strategy_stays() -> None:
    """Who changes a version or a default on purpose changes it here too."""
    assert {spec.id for spec in STRATEGIES.all() if spec.version != 1} == set()
    keyed = {spec.id: spec.identity()["params"] for spec in STRATEGIES.all()}
    assert {name: params for name, params in keyed.items() if params} == {
        "W1_first_k": {"k": 16},
        "W2_last_k": {"k": 16},
        "W3_middle_k": {"k": 16},
        "W4_hierarchical": {"chunks": 4},
        "S4_sif": {"a": 0.001},
        "A7_random": {"share": 0.5},
        "L2_dependency_trigger": {"triggers": ()},
    }


def test_random_half_depends_on_the_passage_only() -> None:
    assert np.array_equal(pooled("A7_random"), pooled("A7_random"))
    weights = STRATEGIES.get("A7_random").weigh(context())
    assert np.count_nonzero(weights.values) == 4 and weights.token_share == 0.5
    draws = {tuple(STRATEGIES.get("A7_random").weigh(context(passage_id=f"p{i}")).values) for i in range(5)}
    assert len(draws) > 1


@pytest.mark.parametrize("length", range(1, 12))
def test_hierarchical_chunks_differ_by_at_most_one(length: int) -> None:
    weights = STRATEGIES.get("W4_hierarchical").weigh(
        TokenContext("p", np.zeros((length, 2), dtype=int), np.zeros(length, dtype=bool))
    )
    sizes = np.round(1 / (weights.values * min(4, length))).astype(int)
    assert sizes.max() - sizes.min() <= 1
    assert weights.values.sum() == pytest.approx(1)
    assert weights.applied == (length >= 4)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 401, 403])
def test_the_remainder_is_a_chunk_of_its_own_as_in_the_reference(length: int) -> None:
    weights = (
        STRATEGIES.get("W4_hierarchical:remainder=true")
        .weigh(TokenContext("p", np.zeros((length, 2), dtype=int), np.zeros(length, dtype=bool)))
        .values
    )
    size = max(1, length // 4)
    chunk_means = [np.arange(start, min(start + size, length)).mean() for start in range(0, length, size)]
    assert weights @ np.arange(length) == pytest.approx(np.mean(chunk_means))
    assert weights.sum() == pytest.approx(1)
    if length == 401:
        assert weights[-1] == pytest.approx(1 / 5)


def test_a_switch_enters_the_key_only_where_it_is_used() -> None:
    assert STRATEGIES.get("W4_hierarchical").identity()["params"] == {"chunks": 4}
    assert STRATEGIES.get("W4_hierarchical:remainder=true").identity()["params"] == {"chunks": 4, "remainder": True}
    assert STRATEGIES.get("S1_attention").identity()["params"] == {}
    published = STRATEGIES.get("S1_attention:corrected=false")
    assert published.identity() == {"id": "S1_attention", "version": 1, "params": {"corrected": False}}
    assert published.needs == ("received",) and not published.served_by_kept_states
    received = context(signals={**SIGNALS, "received": np.arange(9.0)})
    np.testing.assert_allclose(published.weigh(received).values, np.arange(9.0) / 36)


def test_special_tokens_carry_weight_in_p2_and_a11_only() -> None:
    ctx = context(signals=SIGNALS)
    for spec in STRATEGIES.all():
        outcome = spec.weigh(ctx, PARAMS.get(spec.id)) if not spec.reads_states else None
        if hasattr(outcome, "values"):
            assert (outcome.values[..., 0] != 0).any() == (spec.id in ("P2_first_token", "A11_mean_all")), spec.id


@pytest.mark.parametrize(
    ("strategy_id", "applied", "share"),
    [
        ("A1_mean", True, 1),
        ("A2_max", True, 1),
        ("P1_last_token", True, 1 / 8),
        ("W2_last_k", False, 1),
        ("L3_entity", True, 1 / 8),
        ("L1_pos_filtered", True, 6 / 8),
        ("L5_keyword", True, 3 / 8),
    ],
)
def test_coverage(strategy_id: str, applied: bool, share: float) -> None:
    outcome = STRATEGIES.get(strategy_id).weigh(context())
    assert (outcome.applied, outcome.token_share) == (applied, pytest.approx(share))


def test_nothing_selected_falls_back_to_the_mean_and_says_so() -> None:
    bare = Words.from_row(
        {name: [] for name in ("word_start", "word_end", "upos", "dep", "head", "lemma", "entity")}
        | {"sentence": [], "clause": [], "keyword": []}
    )
    for spec in STRATEGIES.all():
        if not spec.reads_annotations:
            continue
        outcome = spec.weigh(context(words=bare), PARAMS.get(spec.id))
        assert (outcome.applied, outcome.token_share) == (False, 0.0)
        np.testing.assert_allclose(outcome.values, np.r_[0, np.full(8, 1 / 8)])


def test_zero_gradients_fall_back_to_the_mean_and_wrong_signals_fail_the_cell() -> None:
    for name, given in (
        ("S2_gradient", {"gradient": np.r_[9.0, np.zeros(8)]}),
        ("G1_input_x_gradient", {**SIGNALS, "gradient_dot": np.r_[9.0, 1e-5 * NORMS[1:] * SIGNALS["gradient"][1:]]}),
    ):
        outcome = STRATEGIES.get(name).weigh(context(signals=given))
        assert (outcome.applied, outcome.token_share) == (False, 0.0)
        np.testing.assert_allclose(outcome.values, np.r_[0, np.full(8, 1 / 8)])
    reason = CellError("too_few", "one token")
    for value, status in ((reason, "too_few"), (np.ones(3), "failed"), (np.full(9, np.nan), "non_finite")):
        with pytest.raises(CellError) as caught:
            STRATEGIES.get("S2_gradient").weigh(context(signals={"gradient": value}))
        assert caught.value.status == status


def test_each_head_pools_a_vector_of_its_own() -> None:
    requests = [Request.of("A1_mean"), Request.of("S3_iti_probe"), Request.of("S1_attention")]
    plan = Weighing.of([context()], requests)
    vectors, outcomes, _ = pool_layer(
        [torch.from_numpy(STATES)], plan, [{"inflow": INFLOW, "head_inflow": HEAD_INFLOW}]
    )
    rows_SD, parts = split_parts(vectors[0], outcomes[0])
    np.testing.assert_allclose(rows_SD[[0, 2]], [EXPECTED["A1_mean"], EXPECTED["S1_attention"]], rtol=1e-6)
    assert np.isnan(rows_SD[1]).all()
    np.testing.assert_allclose(parts[1], [EXPECTED["S1_attention"], (REAL[6] + 3 * REAL[7]) / 4], rtol=1e-6)
    assert outcomes[0][1].applied


def test_parts_and_readout_come_together() -> None:
    without = StrategySpec("X", 1, "uniform", "", lambda ctx: STRATEGIES.get("S3_iti_probe").weigh(ctx))
    with_one = StrategySpec("X", 1, "uniform", "", lambda ctx: ctx.mean_of(ctx.real), readout="best_heads")
    for spec in (without, with_one):
        with pytest.raises(ConfigError, match="names a readout"):
            spec.weigh(context(signals=SIGNALS))
    for spec in STRATEGIES.all():
        if spec.readout is not None:
            assert READOUTS.get(spec.readout).id == spec.readout


def test_clearnlp_labels_are_the_same_arcs_and_unknown_schemes_are_refused() -> None:
    spec = STRATEGIES.get("L2_dependency_rel")
    labels = ["det", "nsubj", "ROOT", "punct", "relcl", "prep", "advmod"]
    chosen = spec.weigh(context(words=_with_dep(labels)))
    assert np.flatnonzero(chosen.values).tolist() == [5, 6, 7]
    subtyped = spec.weigh(context(words=_with_dep(["advcl:if"] + ["det"] * 6)))
    assert np.flatnonzero(subtyped.values).tolist() == [1]
    with pytest.raises(CellError, match="SBJ"):
        spec.weigh(context(words=_with_dep(["SBJ"] * 7)))
    labels = ["det", "nsubjpass", "ROOT", "punct", "dobj", "conj", "advmod"]
    chosen = STRATEGIES.get("L8_svo").weigh(context(words=_with_dep(labels)))
    assert np.flatnonzero(chosen.values).tolist() == [2, 3, 5, 6, 7]
    with pytest.raises(CellError, match="SBJ"):
        STRATEGIES.get("L8_svo").weigh(context(words=_with_dep(["SBJ"] * 7)))


def _with_dep(labels: list[str]) -> Words:
    return Words(**{**WORDS.__dict__, "dep": labels})


def test_trigger_arcs_need_triggers_and_take_phrases_whole() -> None:
    spec = STRATEGIES.get("L2_dependency_trigger")
    assert spec.uses_concept_lexicon and spec.params_for(("a", "b")) == {"triggers": ["a", "b"]}
    assert STRATEGIES.get("L2_dependency_rel").params_for(("a",)) == {}
    for none in ((), ("", " ")):
        with pytest.raises(CellError, match="triggers"):
            spec.weigh(context(), {"triggers": none})
    assert not spec.weigh(context(), {"triggers": ["cat sit now", "the sit"]}).applied
    head_of_the = spec.weigh(context(), {"triggers": ["CAT"]})
    assert np.flatnonzero(head_of_the.values).tolist() == [1, 2]
    at_the_end = spec.weigh(context(), {"triggers": ["run home"]})
    assert np.flatnonzero(at_the_end.values).tolist() == [5, 6, 7, 8]  # "run" is the head of Dogs


def test_failures_name_what_is_missing() -> None:
    with pytest.raises(CellError, match="annotation"):
        STRATEGIES.get("L1_pos_filtered").weigh(context(words=None))
    with pytest.raises(CellError, match="inflow"):
        STRATEGIES.get("S1_attention").weigh(context())
    with pytest.raises(CellError, match="no frequency"):
        STRATEGIES.get("S4_sif").weigh(context())
    with pytest.raises(ConfigError, match="a: Input should be greater than 0"):
        STRATEGIES.get("S4_sif").weigh(context(signals=COUNTED), {"a": 0.0})
    for strategy in ("X1_learned_query", "R1_mean_score", "R2_max_score"):
        with pytest.raises(CellError, match="the prober learns"):
            STRATEGIES.get(strategy).weigh(context())
    with pytest.raises(CellError, match="no real token"):
        STRATEGIES.get("A1_mean").weigh(context(special=np.ones(9, dtype=bool)))


def test_wrong_parameters_and_specifications_are_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: k"):
        Request.of("W2_last_k", {"size": 3})
    with pytest.raises(ConfigError, match="not of parts"):
        STRATEGIES.add(StrategySpec("X", 1, "uniform", "", len, readout="best_heads", common_component=True))
    with pytest.raises(ConfigError, match="unknown need"):
        STRATEGIES.add(StrategySpec("X", 1, "uniform", "", len, needs=("crystal ball",)))
    with pytest.raises(ConfigError, match="parameter 'triggers'"):
        STRATEGIES.add(StrategySpec("X", 1, "linguistic", "", len, uses_concept_lexicon=True))


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("W2_last_k:k=2", [5.5, 4]),
        ("W2_last_k:k=3", EXPECTED["W2_last_k"]),
        ("W1_first_k:k=1", [1, 0]),
        ("W2_last_k", EXPECTED["A1_mean"]),  # 16 tokens: all of them
    ],
)
def test_parameters_in_the_name_are_those_of_the_function(name: str, expected: list[float]) -> None:
    np.testing.assert_allclose(pooled(name), expected, rtol=1e-6)


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
