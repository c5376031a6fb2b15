"""Hidden states and attention inflow against Transformers' own outputs, over architectures and paddings."""

import copy
import itertools

import numpy as np
import pytest
import torch
from services.extractor.tests.conftest import TEXTS, encoded

from poolbench_extractor.encode import Encoded
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.forward.inflow import attention_inflow
from poolbench_extractor.models.decoder import Decoder, find_blocks, wrap_decoder

ATTENTION = ("inflow", "head_inflow", "received")


def reference(decoder: Decoder, passage: Encoded) -> dict[str, list[np.ndarray]]:
    """States after each block and attentions, from the eager model on the passage alone."""
    model = copy.deepcopy(decoder.model)
    model.set_attn_implementation("eager")
    states: list[np.ndarray] = []
    for block in find_blocks(model):
        block.register_forward_hook(lambda _m, _a, out: states.append(_first(out)[0].numpy()))
    with torch.inference_mode():
        output = model(torch.from_numpy(passage.token_ids)[None], output_attentions=True)
    return {"states": states, "attentions": [a[0].numpy() for a in output.attentions]}


def _first(output: object) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def among(attention_HTT: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the attention between real tokens, each row normalised over them."""
    A = attention_HTT[:, real][:, :, real]
    return np.asarray(A / A.sum(-1, keepdims=True))


def inflow_by_definition(attention_HTT: np.ndarray, real: np.ndarray) -> np.ndarray:
    """The definition, loop by loop, over real tokens; [H, T]."""
    A = among(attention_HTT, real)
    H, T, _ = A.shape
    inflow = np.zeros(attention_HTT.shape[:2])
    for h, j in itertools.product(range(H), range(T)):
        inflow[h, np.flatnonzero(real)[j]] = sum((q + 1) * A[h, q, j] for q in range(j, T)) / (T - j)
    return inflow


def test_states_and_inflow_equal_the_eager_reference(decoder: Decoder) -> None:
    passages = encoded(decoder, TEXTS)
    layers = range(decoder.num_blocks)
    captured = capture(decoder, passages, layers, signals=dict.fromkeys(layers, ATTENTION))
    for row, passage in enumerate(passages):
        expected = reference(decoder, passage)
        for layer in layers:
            state = captured.states_of(layer)[row].numpy()
            np.testing.assert_allclose(state, expected["states"][layer], rtol=1e-4, atol=2e-5)
            signals = captured.signals_of(layer)[row]
            wanted = inflow_by_definition(expected["attentions"][layer], ~passage.context.special)
            np.testing.assert_allclose(signals["head_inflow"], wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(signals["inflow"], wanted.mean(0), rtol=1e-4, atol=1e-6)
            real = ~passage.context.special
            received = among(expected["attentions"][layer], real).mean(axis=(0, 1))
            np.testing.assert_allclose(signals["received"][real], received, rtol=1e-4, atol=1e-6)
            assert not signals["received"][~real].any()


def test_without_the_correction_uniform_attention_favours_early_tokens() -> None:
    query = torch.zeros(1, 1, 400, 8)
    received = attention_inflow(query, query, torch.ones(1, 400, dtype=torch.bool), corrected=False)[0, 0]
    assert received.sum() == pytest.approx(1, abs=1e-5)
    first_quarter = np.mean([min(query, 100) / query for query in range(1, 401)])  # .60 of the weight
    assert received[:100].sum() == pytest.approx(first_quarter, abs=1e-4)


def test_the_forward_stops_after_the_deepest_asked_block(llama: Decoder) -> None:
    ran: list[int] = []
    # Transformers leaves hooks of its own where an earlier test asked for attention.
    before = [set(block._forward_hooks) for block in llama.blocks]
    handles = [
        block.register_forward_hook(lambda *_, index=index: ran.append(index))
        for index, block in enumerate(llama.blocks)
    ]
    captured = capture(llama, encoded(llama, TEXTS), [0, 1])
    for handle in handles:
        handle.remove()
    assert ran == [0, 1] and sorted(captured.states) == [0, 1] and not captured.signals
    assert [set(block._forward_hooks) for block in llama.blocks] == before


@pytest.mark.parametrize("heads", [1, 4])
def test_uniform_causal_attention_flows_alike_to_every_token(heads: int) -> None:
    query = torch.zeros(2, heads, 9, 8)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0, 0] = real[1, 7:] = False
    inflow = attention_inflow(query, query[:, :1], real)
    torch.testing.assert_close(inflow, real[:, None].expand(2, heads, 9).float())


def test_inflow_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 11, 8), torch.randn(2, 2, 11, 8)
    real = torch.rand(2, 11) > 0.2
    whole = attention_inflow(query, key, real)
    monkeypatch.setattr("poolbench_extractor.forward.inflow.BLOCK_QUERIES", 2)
    torch.testing.assert_close(attention_inflow(query, key, real), whole, rtol=1e-5, atol=1e-6)


def test_bfloat16_stays_close_to_float32(llama: Decoder) -> None:
    half = wrap_decoder(copy.deepcopy(llama.model).bfloat16(), llama.tokenizer)
    passages = encoded(llama, TEXTS)
    exact, rounded = (capture(model, passages, [1]).states_of(1) for model in (llama, half))
    for a, b in zip(exact, rounded, strict=True):
        assert torch.linalg.norm(a - b.float()) <= 3e-2 * torch.linalg.norm(a)
