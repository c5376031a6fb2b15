"""Attention sinks on the device: vectors and attention inflow without them, and a BOS where the tokenizer adds none."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ConfigError
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import pool_kept
from poolbench.pooling.sinks import SinkRule
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading, encode, tokenise
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.decoder import Decoder

from .test_extractor_capture import inflow_by_definition, reference

#: So small that random weights have some sinks, and not only sinks.
RULE = SinkRule(ratio=1.03)


def found_sinks(states_TD: np.ndarray, special: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(states_TD, axis=1)
    return ~special & (norms > RULE.ratio * np.median(norms[~special]))


@pytest.mark.parametrize("side", ["right", "left"])
def test_inflow_leaves_out_the_sinks_of_each_layer(llama: Decoder, texts: list[str], side: str) -> None:
    passages, layers = encode(llama, PassageTexts(texts, texts)), range(llama.num_blocks)
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
    assert some > len(texts)


def test_vectors_without_sinks_are_the_same_from_kept_states_and_their_tables_count_them(
    llama: Decoder, texts: list[str]
) -> None:
    requests = [Request.of(name) for name in ("A1_mean", "A2_max", "A4_norm_weighted", "S1_attention", "P1_last_token")]
    passages, shards = PassageTexts(texts, texts), list[Any]()
    tables = extract(llama, passages, {1: requests}, keep={1: shards.append}, reading=Reading(sinks=RULE))
    again = pool_kept(shards, requests, sinks=RULE)
    for request in requests:
        made = tables[f"{request.id}/1"]
        here, there = vector_matrix(made["vector"]), vector_matrix(again[request.id]["vector"])
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)
        assert made["num_sinks"].to_pylist() == again[request.id]["num_sinks"].to_pylist()
    means = vector_matrix(tables["A1_mean/1"]["vector"])
    for row, passage in enumerate(encode(llama, PassageTexts(texts, texts))):
        state_TD = reference(llama, passage)["states"][1]
        sinks = found_sinks(state_TD, passage.context.special)
        np.testing.assert_allclose(
            means[row], state_TD[~passage.context.special & ~sinks].mean(0), rtol=1e-4, atol=1e-5
        )
        assert tables["A1_mean/1"]["num_left_out"][row].as_py() == sinks.sum()
        assert tables["P1_last_token/1"]["num_left_out"][row].as_py() == 0


@pytest.fixture
def without_bos(llama: Decoder) -> Any:
    """A tokenizer that defines a BOS and does not add it, as that of SmolLM2."""
    bare = copy.deepcopy(llama.tokenizer)
    bare._tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return bare


def token_ids(tokenizer: Any, texts: Sequence[str], **how: bool) -> list[list[int]]:
    return [context.token_ids.tolist() for context in tokenise(tokenizer, PassageTexts(texts, texts), **how)]  # type: ignore[union-attr]


def test_a_bos_is_added_where_the_tokenizer_adds_none(llama: Decoder, without_bos: Any, texts: list[str]) -> None:
    assert token_ids(without_bos, texts) != token_ids(llama.tokenizer, texts)
    assert token_ids(without_bos, texts, add_bos=True) == token_ids(llama.tokenizer, texts)
    assert token_ids(llama.tokenizer, texts, add_bos=True) == token_ids(llama.tokenizer, texts)
    for bare, own in zip(
        tokenise(without_bos, PassageTexts(texts, texts), add_bos=True),
        tokenise(llama.tokenizer, PassageTexts(texts, texts)),
        strict=True,
    ):
        assert bare.special.tolist() == own.special.tolist() and bare.offsets.tolist() == own.offsets.tolist()


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


def test_a_tokenizer_without_bos_is_a_clear_error(without_bos: Any) -> None:
    without_bos.bos_token = None
    with pytest.raises(ConfigError, match="defines no BOS; leave add_bos unset"):
        list(tokenise(without_bos, PassageTexts(["p"], ["text"]), add_bos=True))


def test_states_do_not_depend_on_the_rule(llama: Decoder, texts: list[str]) -> None:
    passages = encode(llama, PassageTexts(texts, texts))
    one, other = (capture(llama, passages, [1], sinks=rule) for rule in (RULE, SinkRule(leave_out=False)))
    assert all(torch.equal(a, b) for a, b in zip(one.states_of(1), other.states_of(1), strict=True))
