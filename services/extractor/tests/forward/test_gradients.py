"""Loss gradients (S2, G1) against plain autograd on Transformers' own loss."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from services.extractor.tests.conftest import TEXTS, encoded, make_decoder
from transformers import CohereConfig, Gemma2Config, GPTNeoXConfig, GraniteConfig, LlamaConfig

from poolbench.pooling.batch import Request
from poolbench.pooling.signals import Signals
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded, PassageTexts, Reading
from poolbench_extractor.forward import gradients
from poolbench_extractor.forward.capture import Captured, capture
from poolbench_extractor.models.decoder import Decoder, find_blocks, wrap_decoder

LOSS = ("gradient", "gradient_dot")
TOKENS = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
SMALL = {**TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
GROUPED = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
CONFIGS = {
    "llama": LlamaConfig(**HEADS),
    "gemma2": Gemma2Config(**HEADS, sliding_window=8, attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
    "neox": GPTNeoXConfig(**SMALL, num_attention_heads=4),
    "cohere": CohereConfig(**GROUPED, logit_scale=0.25),
    "granite": GraniteConfig(**GROUPED, logits_scaling=4.0),
}


def with_loss(decoder: Decoder, passages: list[Encoded], layers: list[int], **options: str) -> Captured:
    return capture(decoder, passages, layers, signals=dict.fromkeys(layers, LOSS), **options)


def autograd_reference(decoder: Decoder, passage: Encoded) -> tuple[float, list[dict[str, np.ndarray]]]:
    """The model's own loss of one passage, and the signals of each layer by ``retain_grad``."""
    model = copy.deepcopy(decoder.model).requires_grad_(True)
    states: list[torch.Tensor] = []

    def retain(_module: object, _args: object, output: torch.Tensor | tuple) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)
        states[-1].retain_grad()

    for block in find_blocks(model):
        block.register_forward_hook(retain)
    ids = torch.from_numpy(passage.token_ids)[None]
    loss = model(ids, labels=ids).loss
    loss.backward()
    by_layer = [
        {"norms": h[0].norm(dim=-1), "gradient": h.grad[0].norm(dim=-1), "gradient_dot": (h * h.grad)[0].sum(-1)}
        for h in states
    ]
    return loss.item(), [{name: value.detach().numpy() for name, value in given.items()} for given in by_layer]


def assert_close(found: Signals, expected: dict[str, np.ndarray]) -> None:
    """Relative 1e-5; of the largest token's, and for the inner product of its factors, as rounding goes by those."""
    largest = expected["gradient"].max()
    assert np.abs(found["gradient"] - expected["gradient"]).max() <= 1e-5 * largest
    factors = (expected["norms"] * expected["gradient"]).max()
    assert np.abs(found["gradient_dot"] - expected["gradient_dot"]).max() <= 1e-5 * factors


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model(request: pytest.FixtureRequest) -> Decoder:
    return make_decoder(CONFIGS[request.param])


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[tuple[float, list[dict[str, np.ndarray]]]]:
    return [autograd_reference(model, passage) for passage in encoded(model, TEXTS)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_gradients_equal_plain_autograd_alone_and_in_a_batch(model: Decoder, expected: list, side: str) -> None:
    passages = encoded(model, TEXTS)
    together = with_loss(model, passages, [1, 3], padding_side=side)
    for row, passage in enumerate(passages):
        alone = with_loss(model, [passage], [1, 3], padding_side=side)
        for layer in (1, 3):
            assert_close(together.signals_of(layer)[row], expected[row][1][layer])
            assert_close(alone.signals_of(layer)[0], expected[row][1][layer])


def test_every_architecture_gives_gradients(any_decoder: Decoder) -> None:
    (passage,) = encoded(any_decoder, TEXTS[2:3])
    _, expected = autograd_reference(any_decoder, passage)
    captured = with_loss(any_decoder, encoded(any_decoder, TEXTS), [0, 2], padding_side="left")
    for layer in (0, 2):
        assert_close(captured.signals_of(layer)[2], expected[layer])


def test_losses_equal_the_models_own(model: Decoder, expected: list) -> None:
    passages = encoded(model, TEXTS)
    captured = capture(model, passages, [0])
    targets = gradients.Targets.of(passages, captured.starts)
    width = max(captured.lengths)
    ids = torch.stack([torch.from_numpy(np.resize(p.token_ids, width)) for p in passages])
    losses, _ = gradients.head_gradient(model, model.backbone(ids), targets)
    means = [part.mean().item() for part in losses.split(targets.count.tolist())]
    assert means == pytest.approx([loss for loss, _ in expected], rel=1e-5)


def test_chunks_of_the_head_change_nothing(model: Decoder, expected: list, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    head_logits = gradients.head_logits

    def watched(decoder: Decoder, output: object, z_ND: torch.Tensor) -> torch.Tensor:
        sizes.append(len(z_ND))
        return head_logits(decoder, output, z_ND)

    monkeypatch.setattr(gradients, "head_logits", watched)
    monkeypatch.setattr(gradients, "HEAD_BYTES", 7 * 4 * 400)
    passages = encoded(model, TEXTS)
    captured = with_loss(model, passages, [2])
    assert max(sizes) == 7 and sum(sizes) == sum(passage.num_positions - 1 for passage in passages)
    for row, (_, layers) in enumerate(expected):
        assert_close(captured.signals_of(2)[row], layers[2])


def test_no_graph_below_the_shallowest_asked_layer(llama: Decoder) -> None:
    graph: dict[int, bool] = {}
    saved = [0]

    def look(layer: int) -> Callable[..., None]:
        def hook(_module: object, args: tuple, output: torch.Tensor) -> None:
            graph[layer] = output.requires_grad
            if layer < 2:
                assert saved[0] == 0 and not args[0].requires_grad

        return hook

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[0] += 1
        return tensor

    handles = [block.register_forward_hook(look(layer)) for layer, block in enumerate(llama.blocks)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        captured = capture(llama, encoded(llama, TEXTS), [0, 2, 3], signals={2: LOSS, 3: LOSS})
    for handle in handles:
        handle.remove()
    assert graph == {0: False, 1: False, 2: False, 3: True} and saved[0] > 0
    assert not captured.signals_of(0)[0] and set(captured.signals_of(3)[0]) == set(LOSS)
    assert not any(state.requires_grad for state in captured.states.values())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in llama.model.parameters())


def test_without_loss_no_head_and_no_deeper_block_runs(llama: Decoder) -> None:
    ran: list[str] = []
    watched = {"head": llama.model.get_output_embeddings(), "block 2": llama.blocks[2], "block 1": llama.blocks[1]}
    handles = [module.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, module in watched.items()]
    capture(llama, encoded(llama, TEXTS), [1], signals={1: {"inflow", "norms"}})
    assert ran == ["block 1"]
    with_loss(llama, encoded(llama, TEXTS), [1])
    for handle in handles:
        handle.remove()
    assert ran == ["block 1", "block 1", "block 2", "head"]
    assert "forward" not in vars(llama.model.get_decoder())


def test_a_token_weighs_by_what_it_does_to_the_next() -> None:
    """Behind the last block of a model without mixing, dL/dh is (p - onehot) W / n through the final norm."""
    decoder = make_decoder(CONFIGS["neox"])
    with torch.no_grad():
        norm = decoder.backbone.final_layer_norm
        norm.weight.fill_(1), norm.bias.zero_()
    (passage,) = encoded(decoder, ["ab"])
    captured = with_loss(decoder, [passage], [3])
    h_TD = captured.states_of(3)[0].double()
    centred = h_TD - h_TD.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    y_TD = centred / scale
    W_VD = decoder.model.get_output_embeddings().weight.double()
    p_TV = (y_TD @ W_VD.T).softmax(-1)
    onehot = torch.nn.functional.one_hot(torch.from_numpy(passage.token_ids[1:]), 400)
    g_y = (p_TV[:-1] - onehot) @ W_VD / len(onehot)
    y, s = y_TD[:-1], scale[:-1]
    g_h = (g_y - g_y.mean(-1, keepdim=True) - y * (g_y * y).mean(-1, keepdim=True)) / s
    wanted = torch.cat([g_h.norm(dim=-1), torch.zeros(1)])
    np.testing.assert_allclose(captured.signals_of(3)[0]["gradient"], wanted, rtol=1e-5)


def test_a_bos_predicts_the_first_token_and_special_tokens_are_not_predicted(llama: Decoder) -> None:
    passages = encoded(llama, TEXTS[:2])
    targets = gradients.Targets.of(passages, [0, 5])
    assert targets.count.tolist() == [passage.num_positions - 1 for passage in passages]
    assert targets.position[0] == 0 and targets.position[targets.count[0]] == 5
    assert targets.token[0] == passages[0].token_ids[1]
    special = np.array([True, False, False, True])
    framed = replace(passages[0], context=replace(passages[0].context, special=special))
    bare = replace(passages[0], context=replace(passages[0].context, special=np.zeros(4, dtype=bool)))
    assert [gradients.Targets.of([item], [0]).position.tolist() for item in (framed, bare)] == [[0, 1], [0, 1, 2]]


def test_batches_whose_loss_goes_back_are_smaller(llama: Decoder) -> None:
    sizes: dict[str, list[int]] = {}
    for name in ("A1_mean", "S2_gradient"):
        seen = sizes[name] = []
        handle = llama.blocks[0].register_forward_hook(lambda _m, _a, output, seen=seen: seen.append(len(output)))
        limits = BatchLimits(max_loss_tokens=1)
        passages = PassageTexts([str(i) for i in range(5)], TEXTS)
        extract(llama, passages, {1: [Request.of(name)]}, reading=Reading(limits=limits))
        handle.remove()
    assert sizes == {"A1_mean": [5], "S2_gradient": [1] * 5}


def test_half_precision_stays_close_and_does_not_underflow(llama: Decoder) -> None:
    long = [" ".join(TEXTS)[:300]]
    (passage,) = encoded(llama, long)
    exact = with_loss(llama, [passage], [1]).signals_of(1)[0]["gradient"]
    for dtype in (torch.bfloat16, torch.float16):
        half = wrap_decoder(copy.deepcopy(llama.model).to(dtype), llama.tokenizer)
        rounded = with_loss(half, [passage], [1]).signals_of(1)[0]["gradient"]
        assert np.linalg.norm(rounded - exact) <= 2e-2 * np.linalg.norm(exact)
