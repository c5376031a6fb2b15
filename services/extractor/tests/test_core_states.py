"""Kept states and attention sinks on the device, against the model's own states."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from services.extractor.tests.conftest import TEXTS, annotations_of, make_decoder
from services.extractor.tests.forward.test_capture import inflow_by_definition, reference

from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.pooling import STRATEGIES
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import pool_kept, words_by_passage
from poolbench.pooling.sinks import SinkRule
from poolbench.pooling.states import read_states
from poolbench.storage import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench_extractor import core
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading, encode, tokenise
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder, wrap_decoder
from poolbench_extractor.service import create

REQUESTS = [Request.of(s.id) for s in STRATEGIES.all() if s.served_by_kept_states]


def passages_of(texts: list[str]) -> tuple[PassageTexts, pa.Table]:
    table = annotations_of(texts)
    return PassageTexts([f"p{n}" for n in range(len(texts))], texts, words_by_passage(table)), table


def assert_same(here: dict[str, pa.Table], there: dict[str, pa.Table], layer: int, rtol: float = 1e-5) -> None:
    for strategy_id, table in there.items():
        device = here[f"{strategy_id}/{layer}"]
        for name in ("passage_id", "applied", "token_share", "status", "reason"):
            assert table[name].to_pylist() == device[name].to_pylist(), (strategy_id, name)
        for a, b in zip(vector_matrix(table["vector"]), vector_matrix(device["vector"]), strict=True):
            gap, size = np.linalg.norm(a - b), np.linalg.norm(b)
            assert np.isnan(size) or gap <= rtol * size, strategy_id


def test_every_strategy_agrees_on_the_demo_model(demo: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.StateKeeper.__init__, "__defaults__", (20_000,))  # several shards
    passages, annotations = passages_of([*TEXTS, "word " * 600, ""])
    shards: dict[int, list[pa.Table]] = {1: [], 4: []}
    sinks = {layer: found.append for layer, found in shards.items()}
    reading = Reading(limits=BatchLimits(max_passages=2))
    device = extract(demo, passages, dict.fromkeys(shards, REQUESTS), keep=sinks, reading=reading)
    for layer, found in shards.items():
        assert len(found) > 1
        assert_same(device, pool_kept(found, REQUESTS, annotations), layer)


def test_states_alone_serve_a_strategy_that_comes_later(decoder: Decoder) -> None:
    passages, annotations = passages_of(TEXTS)
    shards: list[pa.Table] = []
    assert extract(decoder, passages, {}, keep={2: shards.append}) == {}
    later = pool_kept(shards, REQUESTS, annotations)
    assert_same(extract(decoder, passages, {2: REQUESTS}), later, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept_bit_by_bit(llama: Decoder, dtype: torch.dtype) -> None:
    decoder = make_decoder(llama.model.config)
    decoder = wrap_decoder(decoder.model.to(dtype), decoder.tokenizer)
    passages, annotations = passages_of(TEXTS)
    shards: list[pa.Table] = []
    device = extract(decoder, passages, {1: REQUESTS}, keep={1: shards.append})
    assert_same(device, pool_kept(shards, REQUESTS, annotations), 1)
    (shard,) = shards
    assert shard.schema.metadata[b"hidden_dtype"].decode() == str(dtype).removeprefix("torch.")
    for passage in read_states(shard):
        back = torch.from_numpy(passage.hidden_TD)
        assert torch.equal(back.to(dtype).float(), back)  # no value between two of this type


def test_memory_that_runs_out_repeats_no_passage(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def pooling_steps(*arguments):  # type: ignore[no-untyped-def]
        steps = pooled(*arguments)
        yield next(steps)
        calls.append(1)
        if len(calls) == 2:  # the second layer of the first batch: the first layer was handed on already
            raise torch.OutOfMemoryError("out of memory")
        return (yield from steps)

    pooled = core.pooling_steps
    monkeypatch.setattr(core, "pooling_steps", pooling_steps)
    passages, _ = passages_of(TEXTS)
    shards: list[pa.Table] = []
    wanted = {layer: [Request.of("A1_mean")] for layer in (0, 1)}
    extract(llama, passages, wanted, keep={0: shards.append})
    assert sorted(p.position for shard in shards for p in read_states(shard)) == list(range(len(TEXTS)))


def test_a_failed_task_leaves_no_shards(artifacts: Artifacts, saved_llama: Path) -> None:
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
    assert artifacts.manifest("extractor.states.1").num_rows == len(TEXTS) and not io.missing


#: So small that random weights have some sinks, and not only sinks.
RULE = SinkRule(ratio=1.03)


def found_sinks(states_TD: np.ndarray, special: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(states_TD, axis=1)
    return ~special & (norms > RULE.ratio * np.median(norms[~special]))


@pytest.mark.parametrize("side", ["right", "left"])
def test_inflow_leaves_out_the_sinks_of_each_layer(llama: Decoder, side: str) -> None:
    passages, layers = encode(llama, PassageTexts(TEXTS, TEXTS)), range(llama.num_blocks)
    signals = dict.fromkeys(layers, ("head_inflow",))
    captured = capture(llama, passages, layers, signals=signals, sinks=RULE, padding_side=side)
    some = 0
    for row, passage in enumerate(passages):
        expected = reference(llama, passage)
        for layer in layers:
            sinks = found_sinks(expected["states"][layer], passage.context.special)
            some += sinks.sum()
            wanted = inflow_by_definition(expected["attentions"][layer], ~passage.context.special & ~sinks)
            found = captured.signals_of(layer)[row]["head_inflow"]
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert some > len(TEXTS)


def test_vectors_without_sinks_are_the_same_from_kept_states_and_their_tables_count_them(llama: Decoder) -> None:
    requests = [Request.of(name) for name in ("A1_mean", "A2_max", "A4_norm_weighted", "S1_attention", "P1_last_token")]
    passages, shards = PassageTexts(TEXTS, TEXTS), list[Any]()
    tables = extract(llama, passages, {1: requests}, keep={1: shards.append}, reading=Reading(sinks=RULE))
    again = pool_kept(shards, requests, sinks=RULE)
    for request in requests:
        made = tables[f"{request.id}/1"]
        here, there = vector_matrix(made["vector"]), vector_matrix(again[request.id]["vector"])
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)
        assert made["num_sinks"].to_pylist() == again[request.id]["num_sinks"].to_pylist()
    means = vector_matrix(tables["A1_mean/1"]["vector"])
    for row, passage in enumerate(encode(llama, PassageTexts(TEXTS, TEXTS))):
        state_TD = reference(llama, passage)["states"][1]
        sinks = found_sinks(state_TD, passage.context.special)
        np.testing.assert_allclose(
            means[row], state_TD[~passage.context.special & ~sinks].mean(0), rtol=1e-4, atol=1e-5
        )
        assert tables["A1_mean/1"]["num_left_out"][row].as_py() == sinks.sum()
        assert tables["P1_last_token/1"]["num_left_out"][row].as_py() == 0


def token_ids(tokenizer: Any, texts: Sequence[str], **how: bool) -> list[list[int]]:
    return [context.token_ids.tolist() for context in tokenise(tokenizer, PassageTexts(texts, texts), **how)]  # type: ignore[union-attr]


def test_a_bos_is_added_where_the_tokenizer_adds_none_but_defines_one(llama: Decoder, without_bos: Any) -> None:
    assert token_ids(without_bos, TEXTS) != token_ids(llama.tokenizer, TEXTS)
    assert token_ids(without_bos, TEXTS, add_bos=True) == token_ids(llama.tokenizer, TEXTS)
    assert token_ids(llama.tokenizer, TEXTS, add_bos=True) == token_ids(llama.tokenizer, TEXTS)
    for bare, own in zip(
        tokenise(without_bos, PassageTexts(TEXTS, TEXTS), add_bos=True),
        tokenise(llama.tokenizer, PassageTexts(TEXTS, TEXTS)),
        strict=True,
    ):
        assert bare.special.tolist() == own.special.tolist() and bare.offsets.tolist() == own.offsets.tolist()
    without_bos = copy.deepcopy(without_bos)
    without_bos.bos_token = None
    with pytest.raises(ConfigError, match="defines no BOS; leave add_bos unset"):
        list(tokenise(without_bos, PassageTexts(["p"], ["text"]), add_bos=True))


def test_a_bare_text_is_read_without_special_tokens(llama: Decoder) -> None:
    """As Transformers reads it with `add_special_tokens=False`, mean over the tokens of the state after the norm."""
    words = ["chair", "console table", "chair"]
    spans = [(0, len(word)) for word in words]
    passages = PassageTexts(["a", "b", "c"], words, spans=spans, bare=[True, True, False])
    reading = Reading(add_bos=True, include_bos=True, sinks=SinkRule(leave_out=False))
    (table,) = extract(llama, passages, {4: [Request.of("A1_mean")]}, reading=reading).values()
    found = vector_matrix(table["vector"])
    for row, word in enumerate(words[:2]):
        ids = llama.tokenizer(word, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            state_TD = llama.model.model(ids).last_hidden_state[0]
        np.testing.assert_allclose(found[row], state_TD.mean(0).numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(found[0], found[2], atol=1e-3)


def test_states_do_not_depend_on_the_rule(llama: Decoder) -> None:
    passages = encode(llama, PassageTexts(TEXTS, TEXTS))
    one, other = (capture(llama, passages, [1], sinks=rule) for rule in (RULE, SinkRule(leave_out=False)))
    assert all(torch.equal(a, b) for a, b in zip(one.states_of(1), other.states_of(1), strict=True))
