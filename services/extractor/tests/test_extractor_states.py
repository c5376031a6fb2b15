"""Kept states against the device: the demo model, every strategy, half precision, memory that runs out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolbench.config import asset_path, resolve_model
from poolbench.contracts.tables import ANNOTATIONS, PASSAGES, table_from_rows, vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.pooling import STRATEGIES
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import pool_kept, words_by_passage
from poolbench.pooling.states import read_states
from poolbench.settings import ExtractorSettings
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_extractor import core
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.models.decoder import Decoder, wrap_decoder
from poolbench_extractor.models.load import DecoderCache
from poolbench_extractor.service import create

REQUESTS = [Request.of(s.id) for s in STRATEGIES.all() if s.served_by_kept_states]


def annotations_of(texts: list[str]) -> pa.Table:
    """Words by white space with invented tags: weights for every linguistic strategy."""
    rows = []
    for number, text in enumerate(texts):
        starts = [i for i, c in enumerate(text) if c != " " and (i == 0 or text[i - 1] == " ")]
        words = text.split()
        count = range(len(words))
        rows.append(
            {
                "passage_id": f"p{number}",
                "word_start": starts,
                "word_end": [start + len(word) for start, word in zip(starts, words, strict=True)],
                "upos": [("NOUN", "DET", "VERB")[i % 3] for i in count],
                "dep": [("det", "mark", "nsubj", "obj")[i % 4] for i in count],
                "head": [i - i % 2 for i in count],
                "lemma": words,
                "entity": ["" if i % 4 else "PERSON" for i in count],
                "sentence": [i // 5 for i in count],
                "clause": [i // 3 for i in count],
                "keyword": [i % 5 == 1 for i in count],
            }
        )
    return table_from_rows(rows, ANNOTATIONS)


def passages_of(texts: list[str]) -> tuple[PassageTexts, pa.Table]:
    table = annotations_of(texts)
    return PassageTexts([f"p{n}" for n in range(len(texts))], texts, words_by_passage(table)), table


@pytest.fixture(scope="module")
def demo() -> Decoder:
    asset_path("demo_lm")
    return DecoderCache(ExtractorSettings(device="cpu")).get(resolve_model("demo"))


def assert_same(here: dict[str, pa.Table], there: dict[str, pa.Table], layer: int, rtol: float = 1e-5) -> None:
    for strategy_id, table in there.items():
        device = here[f"{strategy_id}/{layer}"]
        for name in ("passage_id", "applied", "token_share", "status", "reason"):
            assert table[name].to_pylist() == device[name].to_pylist(), (strategy_id, name)
        for a, b in zip(vector_matrix(table["vector"]), vector_matrix(device["vector"]), strict=True):
            gap, size = np.linalg.norm(a - b), np.linalg.norm(b)
            assert np.isnan(size) or gap <= rtol * size, strategy_id


def test_every_strategy_agrees_on_the_demo_model(
    demo: Decoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core.StateKeeper.__init__, "__defaults__", (20_000,))  # several shards
    passages, annotations = passages_of([*texts, "word " * 600, ""])
    shards: dict[int, list[pa.Table]] = {1: [], 4: []}
    sinks = {layer: found.append for layer, found in shards.items()}
    reading = Reading(limits=BatchLimits(max_passages=2))
    device = extract(demo, passages, dict.fromkeys(shards, REQUESTS), keep=sinks, reading=reading)
    for layer, found in shards.items():
        assert len(found) > 1
        assert_same(device, pool_kept(found, REQUESTS, annotations), layer)


def test_states_alone_serve_a_strategy_that_comes_later(llama: Decoder, texts: list[str]) -> None:
    passages, annotations = passages_of(texts)
    shards: list[pa.Table] = []
    assert extract(llama, passages, {}, keep={2: shards.append}) == {}
    later = pool_kept(shards, REQUESTS, annotations)
    assert_same(extract(llama, passages, {2: REQUESTS}), later, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept_bit_by_bit(
    build: Callable[..., Decoder], llama: Decoder, texts: list[str], dtype: torch.dtype
) -> None:
    decoder = build(llama.model.config)
    decoder = wrap_decoder(decoder.model.to(dtype), decoder.tokenizer)
    passages, annotations = passages_of(texts)
    shards: list[pa.Table] = []
    device = extract(decoder, passages, {1: REQUESTS}, keep={1: shards.append})
    assert_same(device, pool_kept(shards, REQUESTS, annotations), 1)
    (shard,) = shards
    assert shard.schema.metadata[b"hidden_dtype"].decode() == str(dtype).removeprefix("torch.")
    for passage in read_states(shard):
        back = torch.from_numpy(passage.hidden_TD)
        assert torch.equal(back.to(dtype).float(), back)  # no value between two of this type


def test_memory_that_runs_out_repeats_no_passage(
    llama: Decoder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def pool_layer(*arguments):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 2:  # the second layer of the first batch: the first layer was handed on already
            raise torch.OutOfMemoryError("out of memory")
        return pooled(*arguments)

    pooled = core.pool_layer
    monkeypatch.setattr(core, "pool_layer", pool_layer)
    passages, _ = passages_of(texts)
    shards: list[pa.Table] = []
    wanted = {layer: [Request.of("A1_mean")] for layer in (0, 1)}
    extract(llama, passages, wanted, keep={0: shards.append})
    assert sorted(p.position for shard in shards for p in read_states(shard)) == list(range(len(texts)))


def test_a_failed_task_leaves_no_shards(saved_llama: Path, texts: list[str], tmp_path: Path) -> None:
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    rows = [{"passage_id": f"p{n}", "text": text} for n, text in enumerate(texts)]
    artifacts.write_table("corpus.passages.1", table_from_rows(rows, PASSAGES))
    task = Task(
        kind="extractor.extract",
        inputs={"passages": "corpus.passages.1"},
        outputs={"states/0": "extractor.states.1", "A1_mean/0": "extractor.extract.1"},
        params={"model": str(saved_llama), "strategies": [{"id": "A1_mean"}], "layers": [0]},
    )
    io = TaskIO(task, artifacts)
    put, service = artifacts.store.put, create()

    def full(path: str, data: bytes, **kwargs: bool) -> bool:
        if "extract.1/" in path:
            raise OSError("disk full")
        return put(path, data, **kwargs)

    artifacts.store.put = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        service.handlers[task.kind](task, io)
    assert not list(artifacts.store.list("artifacts/extractor.states.1"))
    artifacts.store.put = put  # type: ignore[method-assign]
    service.handlers[task.kind](task, io)
    assert artifacts.manifest("extractor.states.1").num_rows == len(texts) and not io.missing
