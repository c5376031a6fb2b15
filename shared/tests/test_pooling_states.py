"""Kept states as shards: exact in every dtype, bounded in size, in passage order again when pooled."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import CellError, InputError
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.context import TokenContext
from poolbench.pooling.kept import pool_kept
from poolbench.pooling.states import KeptPassage, ShardWriter, read_states, states_table
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore

WIDTH = 6
REQUESTS = [Request.of(name) for name in ("A1_mean", "A2_max", "A4_norm_weighted", "P1_last_token", "S1_attention")]


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
    return pool_layer([h_TD], Weighing.of([context], REQUESTS), [passage.signals])[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_states_keep_every_bit_and_half_precision_its_size(dtype: torch.dtype) -> None:
    passage, h_TD = kept(0, 9, dtype)
    name = str(dtype).removeprefix("torch.")
    table = states_table([passage], WIDTH, name)
    assert table["hidden"].chunk(0).values.values.nbytes == h_TD.numel() * h_TD.element_size()
    (back,) = read_states(table)
    assert torch.equal(torch.from_numpy(back.hidden_TD), h_TD.float())
    assert np.array_equal(back.signals["inflow"], passage.signals["inflow"])
    vectors = pool_kept([table], REQUESTS)
    for row, request in zip(direct(passage, h_TD), REQUESTS, strict=True):
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
    tables = pool_kept(artifacts.read_shards("extractor.states.1"), REQUESTS)
    for column, request in enumerate(REQUESTS):
        table = tables[request.id]
        assert table["passage_id"].to_pylist() == [f"p{n}" for n in range(6)]
        assert table["status"].to_pylist() == ["ok"] * 5 + ["failed"]
        matrix = vector_matrix(table["vector"])
        for n, (passage, h_TD) in passages.items():
            np.testing.assert_allclose(matrix[n], direct(passage, h_TD)[column], rtol=1e-6)


def test_dtypes_are_not_mixed_in_a_shard() -> None:
    shards: list[pa.Table] = []
    writer = ShardWriter(shards.append, WIDTH)
    for n, dtype in enumerate((torch.bfloat16, torch.bfloat16, torch.float32)):
        writer.add(kept(n, 3, dtype)[0])
    writer.close()
    assert [shard.schema.metadata[b"hidden_dtype"] for shard in shards] == [b"bfloat16", b"float32"]
    assert pool_kept(shards, REQUESTS)["A1_mean"].num_rows == 3


def test_strategies_that_need_what_was_not_kept_say_so() -> None:
    passage = KeptPassage(0, "p", np.ones((3, WIDTH), np.float32), np.zeros(3, bool))
    tables = pool_kept([states_table([passage], WIDTH)], [Request.of(n) for n in ("S1_attention", "L3_entity")])
    inflow, entity = (tables[name].to_pylist()[0] for name in ("S1_attention", "L3_entity"))
    assert inflow["status"] == entity["status"] == "failed" and inflow["vector"] is None
    assert "no inflow" in inflow["reason"] and "no character offsets" in entity["reason"]


def test_a_table_of_something_else_is_refused() -> None:
    table = states_table([kept(0, 3)[0]], WIDTH)
    with pytest.raises(InputError, match="lacks the columns hidden"):
        pool_kept([table.drop_columns(["hidden"])], REQUESTS)
    wrong = table.set_column(table.schema.get_field_index("hidden"), "hidden", pa.array([1.0]))
    with pytest.raises(InputError, match="list<fixed_size_list"):
        pool_kept([wrong], REQUESTS)
    with pytest.raises(InputError, match="say float16 but hold float"):
        pool_kept([table.replace_schema_metadata({"hidden_dtype": "float16"})], REQUESTS)
    with pytest.raises(InputError, match="1 passages twice"):
        pool_kept([table, table], REQUESTS)
