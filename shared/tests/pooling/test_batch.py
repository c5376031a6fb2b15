"""Batched pooling and kept states: invariances, failures, alignment, and order."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolbench.contracts.tables import parts_of, vector_matrix
from poolbench.errors import CellError, InputError
from poolbench.pooling import STRATEGIES, TokenContext
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.collect import VectorCollector
from poolbench.pooling.context import first_tokens_of_words, tokens_of_words
from poolbench.pooling.kept import pool_kept
from poolbench.pooling.signals import KEPT_SIGNALS, SIGNALS, Signals
from poolbench.pooling.states import KeptPassage, ShardWriter, read_states, states_table
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore

POOLED = [s for s in STRATEGIES.all() if not s.reads_states]
UNANNOTATED = [s.id for s in POOLED if not s.reads_annotations]
REQUESTS = [Request.of(strategy_id) for strategy_id in UNANNOTATED]
CAPTURED = [name for name, signal in SIGNALS.items() if signal.source in ("attention", "loss")]


def passage(length: int, seed: int) -> tuple[TokenContext, torch.Tensor, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    special = np.zeros(length, dtype=bool)
    special[0] = True
    signals = {"frequency": rng.random(length)}
    context = TokenContext(f"p{seed}", np.zeros((length, 2), dtype=int), special, signals=signals)
    states = torch.from_numpy(rng.normal(size=(length, 8)).astype(np.float32))
    return context, states, {name: rng.random((3, length) if SIGNALS[name].per_head else length) for name in CAPTURED}


def test_a_passage_alone_equals_itself_in_a_batch() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (40, 7, 2, 23)], strict=True)
    together, *_ = pool_layer(states, Weighing.of(contexts, REQUESTS), signals)
    for index in range(4):
        alone, *_ = pool_layer([states[index]], Weighing.of([contexts[index]], REQUESTS), [signals[index]])
        np.testing.assert_allclose(together[index], alone[0], rtol=1e-6, atol=1e-6)


def test_scaled_and_half_precision_states_are_pooled_in_float32() -> None:
    context, state, signals = passage(30, 3)
    scaling = [r for r in REQUESTS if r.id != "A8_unit_mean"]
    once, *_ = pool_layer([state], Weighing.of([context], scaling), [signals])
    twice, *_ = pool_layer([2 * state], Weighing.of([context], scaling), [signals])
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-5)
    context, state, signals = passage(30, 3)
    half, *_ = pool_layer([state.bfloat16()], Weighing.of([context], REQUESTS), [signals])
    exact, *_ = pool_layer([state.bfloat16().float()], Weighing.of([context], REQUESTS), [signals])
    np.testing.assert_array_equal(half, exact)


def test_real_tokens_need_not_be_contiguous() -> None:
    context = TokenContext("p", np.zeros((4, 2), dtype=int), np.array([False, True, False, True]))
    state = torch.tensor([[1.0], [50.0], [3.0], [-50.0]])
    vectors, *_ = pool_layer([state], Weighing.of([context], [Request.of("A2_max"), Request.of("A3_min")]))
    assert vectors[0, :, 0].tolist() == [3.0, 1.0]


def test_failures_stay_in_their_row() -> None:
    good, state, _ = passage(5, 1)
    bad = TokenContext("bad", np.zeros((5, 2), dtype=int), np.ones(5, dtype=bool))
    broken = state.clone()
    broken[2] = torch.nan
    requests = [Request.of("A1_mean"), Request.of("S2_gradient"), Request.of("A4_norm_weighted")]
    vectors, outcomes, num_sinks = pool_layer([state, state, broken], Weighing.of([good, bad, good], requests))
    collector = VectorCollector(["good", "bad", "nan"], [r.id for r in requests], 8)
    for index in range(3):
        collector.add(index, vectors[index], outcomes[index], num_sinks[index])
    mean = collector.table("A1_mean").to_pylist()
    assert [row["status"] for row in mean] == ["ok", "failed", "non_finite"]
    assert [row["vector"] is None for row in mean] == [False, True, True]
    assert collector.table("S2_gradient")["status"].to_pylist()[0] == "failed"
    assert collector.table("A4_norm_weighted")["status"].to_pylist()[2] == "non_finite"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ((4, 7), [1]),  # the word itself
        ((3, 7), [1]),  # with the space before it
        ((5, 6), [1]),  # inside
        ((2, 5), [0, 1]),  # across two words
        ((3, 4), []),  # the space alone
        ((3, 3), []),  # trimmed white space
        ((0, 0), []),  # special token
        ((5, 5), [1]),  # no width, inside a word
        ((7, 9), []),  # behind the last word
    ],
)
def test_alignment_by_overlap(token: tuple[int, int], expected: list[int]) -> None:
    start, end = np.array([0, 4]), np.array([3, 7])
    hits = [w for w in (0, 1) if tokens_of_words(np.array([token]), start, end, np.arange(2) == w)[0]]
    assert hits == expected


@pytest.mark.parametrize(
    ("tokens", "first"),
    [
        ([(0, 3), (4, 7)], [0, 1]),
        ([(0, 2), (2, 3), (3, 7)], [0, 2]),  # the second word's token carries its space
        ([(0, 2), (2, 5), (5, 7)], [0, 1]),  # one token ends a word and begins the next
        ([(0, 1), (0, 1), (1, 3), (4, 5), (4, 5)], [0, 3]),  # a character split over two tokens
        ([(0, 0), (0, 7)], [1]),
        ([(3, 4), (7, 9)], []),
        ([], []),
    ],
)
def test_first_tokens_of_words(tokens: list[tuple[int, int]], first: list[int]) -> None:
    offsets = np.array(tokens, dtype=int).reshape(-1, 2)
    assert first_tokens_of_words(offsets, np.array([0, 4]), np.array([3, 7])).tolist() == first


def carried(signals: Signals) -> dict[str, np.ndarray]:
    """What kept states carry of the signals, in their precision."""
    return {name: np.asarray(signals[name], dtype=np.float32) for name in KEPT_SIGNALS}


def test_kept_states_give_the_same_vectors() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (12, 6)], strict=True)
    kept = [
        KeptPassage(n, c.passage_id, h.numpy(), c.special, c.token_ids, c.offsets, carried(given))
        for n, (c, h, given) in enumerate(zip(contexts, states, signals, strict=True))
    ]
    late = KeptPassage(2, "late", error=CellError("failed", "too long"))
    tables = pool_kept([states_table([late, kept[1]], 8), states_table(kept[:1], 8)], REQUESTS)
    pooled = pool_layer(states, Weighing.of(contexts, REQUESTS), [carried(given) for given in signals])
    direct = VectorCollector(["12", "6"], UNANNOTATED, 8)
    for index, found in enumerate(zip(*pooled, strict=True)):
        direct.add(index, *found)
    for request in REQUESTS:
        table = tables[request.id]
        if not request.strategy.served_by_kept_states:
            assert table["status"].to_pylist() == ["failed"] * 3
            continue
        expected = vector_matrix(direct.table(request.id)["vector"])
        np.testing.assert_allclose(vector_matrix(table["vector"])[:2], expected, rtol=1e-5, atol=1e-6)
        assert table["status"].to_pylist() == ["ok", "ok", "failed"]


def test_parts_lie_side_by_side_in_their_row() -> None:
    contexts, states, signals = zip(*[passage(n, n) for n in (9, 5)], strict=True)
    requests = [Request.of("S3_iti_probe"), Request.of("A1_mean")]
    broken = states[0].clone()
    broken[4] = torch.inf
    given = [signals[0], signals[0], {}]
    vectors, outcomes, num_sinks = pool_layer(
        [states[0], broken, states[1]], Weighing.of([*[contexts[0]] * 2, contexts[1]], requests), given
    )
    collector = VectorCollector(["good", "broken", "blind", "late"], [r.id for r in requests], 8)
    for index in range(3):
        collector.add(index, vectors[index], outcomes[index], num_sinks[index])
    collector.fail(3, CellError("failed", "too long"))
    table = collector.table("S3_iti_probe")
    assert parts_of(table) == (3, "best_heads") and parts_of(collector.table("A1_mean")) == (1, None)
    assert table["status"].to_pylist() == ["ok", "non_finite", "failed", "failed"]
    weights = signals[0]["head_inflow"][:, 1:] / signals[0]["head_inflow"][:, 1:].sum(axis=1, keepdims=True)
    expected = (weights @ states[0].numpy()[1:]).reshape(-1)
    np.testing.assert_allclose(vector_matrix(table["vector"])[0], expected, rtol=1e-5, atol=1e-6)
    assert collector.table("A1_mean")["status"].to_pylist() == ["ok", "non_finite", "ok", "failed"]


WIDTH = 6
KEPT_REQUESTS = [
    Request.of(name) for name in ("A1_mean", "A2_max", "A4_norm_weighted", "P1_last_token", "S1_attention")
]


def stored(h_TD: torch.Tensor) -> np.ndarray:
    if h_TD.dtype is torch.bfloat16:
        return h_TD.view(torch.int16).numpy().view(np.uint16)
    return h_TD.numpy()


def kept(position: int, num: int, dtype: torch.dtype = torch.float32) -> tuple[KeptPassage, torch.Tensor]:
    rng = np.random.default_rng(position)
    h_TD = torch.from_numpy(rng.normal(size=(num, WIDTH)).astype(np.float32) * 100).to(dtype)
    inflow = rng.random(num).astype(np.float32)
    special = np.arange(num) == 0
    return KeptPassage(position, f"p{position}", stored(h_TD), special, signals={"inflow": inflow}), h_TD


def direct(passage: KeptPassage, h_TD: torch.Tensor) -> np.ndarray:
    context = TokenContext(passage.passage_id, passage.offsets, passage.special)
    return pool_layer([h_TD], Weighing.of([context], KEPT_REQUESTS), [passage.signals])[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_states_keep_every_bit_and_half_precision_its_size(dtype: torch.dtype) -> None:
    passage, h_TD = kept(0, 9, dtype)
    name = str(dtype).removeprefix("torch.")
    table = states_table([passage], WIDTH, name)
    assert table["hidden"].chunk(0).values.values.nbytes == h_TD.numel() * h_TD.element_size()
    (back,) = read_states(table)
    assert torch.equal(torch.from_numpy(back.hidden_TD), h_TD.float())
    assert np.array_equal(back.signals["inflow"], passage.signals["inflow"])
    vectors = pool_kept([table], KEPT_REQUESTS)
    for row, request in zip(direct(passage, h_TD), KEPT_REQUESTS, strict=True):
        np.testing.assert_array_equal(vector_matrix(vectors[request.id]["vector"])[0], row)


def test_bfloat16_extremes_survive() -> None:
    values = torch.tensor([[0.0, -0.0, 3.3895e38, 9.2e-41, float("inf"), -1.0]], dtype=torch.bfloat16)
    (back,) = read_states(states_table([KeptPassage(0, "p", stored(values), np.zeros(1, bool))], WIDTH, "bfloat16"))
    assert torch.equal(torch.from_numpy(back.hidden_TD).bfloat16().view(torch.int16), values.view(torch.int16))


def test_shards_are_bounded_and_come_back_in_passage_order(tmp_path) -> None:
    lengths = {3: 40, 1: 30, 0: 20, 4: 9, 2: 2}  # longest first, as batches run
    passages = {n: kept(n, length) for n, length in lengths.items()}
    artifacts = Artifacts(FolderStore(tmp_path))
    writer = artifacts.writer("extractor.states.1")
    shards = ShardWriter(writer.add_shard, WIDTH, shard_bytes=30 * WIDTH * 4)
    for passage, _ in passages.values():
        shards.add(passage)
    shards.add(KeptPassage(5, "p5", error=CellError("failed", "too long")))
    shards.close()
    writer.commit()
    sizes = [[p.position for p in read_states(shard)] for shard in artifacts.read_shards("extractor.states.1")]
    assert sizes == [[3], [1], [0, 4], [2, 5]]
    assert artifacts.manifest("extractor.states.1").num_rows == 6
    tables = pool_kept(artifacts.read_shards("extractor.states.1"), KEPT_REQUESTS)
    for column, request in enumerate(KEPT_REQUESTS):
        table = tables[request.id]
        assert table["passage_id"].to_pylist() == [f"p{n}" for n in range(6)]
        assert table["status"].to_pylist() == ["ok"] * 5 + ["failed"]
        matrix = vector_matrix(table["vector"])
        for n, (passage, h_TD) in passages.items():
            np.testing.assert_allclose(matrix[n], direct(passage, h_TD)[column], rtol=1e-6)


def test_dtypes_are_not_mixed_in_a_shard() -> None:
    shards: list[pa.Table] = []
    writer = ShardWriter(shards.append, WIDTH)
    writer.add(KeptPassage(3, "p3", error=CellError("failed", "too long")))  # it has no dtype
    for n, dtype in enumerate((torch.bfloat16, torch.bfloat16, torch.float32)):
        writer.add(kept(n, 3, dtype)[0])
    writer.close()
    assert [shard.schema.metadata[b"hidden_dtype"] for shard in shards] == [b"bfloat16", b"float32"]
    assert pool_kept(shards, KEPT_REQUESTS)["A1_mean"].num_rows == 4


def test_strategies_that_need_what_was_not_kept_say_so() -> None:
    passage = KeptPassage(0, "p", np.ones((3, WIDTH), np.float32), np.zeros(3, bool))
    tables = pool_kept([states_table([passage], WIDTH)], [Request.of(n) for n in ("S1_attention", "L3_entity")])
    inflow, entity = (tables[name].to_pylist()[0] for name in ("S1_attention", "L3_entity"))
    assert inflow["status"] == entity["status"] == "failed" and inflow["vector"] is None
    assert "no inflow" in inflow["reason"] and "no character offsets" in entity["reason"]


def test_a_table_of_something_else_is_refused() -> None:
    table = states_table([kept(0, 3)[0]], WIDTH)
    with pytest.raises(InputError, match="lacks the columns hidden"):
        pool_kept([table.drop_columns(["hidden"])], KEPT_REQUESTS)
    wrong = table.set_column(table.schema.get_field_index("hidden"), "hidden", pa.array([1.0]))
    with pytest.raises(InputError, match="list<fixed_size_list"):
        pool_kept([wrong], KEPT_REQUESTS)
    with pytest.raises(InputError, match="say float16 but hold float"):
        pool_kept([table.replace_schema_metadata({"hidden_dtype": "float16"})], KEPT_REQUESTS)
    with pytest.raises(InputError, match="1 passages twice"):
        pool_kept([table, table], KEPT_REQUESTS)
