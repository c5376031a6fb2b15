"""Loss recovered and dense features, against a plain forward pass with a hook."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from services.extractor.tests.conftest import CONFIGS, TEXTS, make_decoder, make_tokenizer, passages_of, run
from services.extractor.tests.test_features import KEEP, WIDTH, loaded, saved
from torch import Tensor
from transformers import BertConfig, BertModel

from poolbench.contracts.measures import Measure
from poolbench.contracts.tasks import Task
from poolbench.pooling.sinks import SinkRule
from poolbench.storage import Artifacts
from poolbench_extractor import recovered as module
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.encode import Reading, encode
from poolbench_extractor.features import Encoder, autoencoder, coordinates, random_twin
from poolbench_extractor.forward import gradients
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder, wrap_encoder
from poolbench_extractor.recovered import DENSE_SHARE, LOSS_RECOVERED, recovered

HOOKED_LAYER = 1
#: So low that some tokens of most texts are sinks.
MANY_SINKS = SinkRule(ratio=1.1)


def zero(width: int = WIDTH) -> Encoder:
    return Encoder("zero", 2, lambda x_TD: torch.zeros(len(x_TD), 2), lambda f_Td: torch.zeros(len(f_Td), width))


def measured(decoder: Decoder, texts: list[str], *encoders: Encoder, **options: Any) -> list[dict[str, Measure]]:
    layer = options.pop("layer", HOOKED_LAYER)
    found = recovered(decoder, passages_of(texts), {each.id: each for each in encoders}, layer, **options)
    return [{one.metric: one for one in found[each.id]} for each in encoders]


@contextmanager
def replacing(decoder: Decoder, layer: int, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The states [T, D] of one text that leave a layer are replaced."""

    def hook(_module: object, _args: object, output: Any) -> Any:
        if isinstance(output, Tensor):
            return replace(output[0])[None]
        if isinstance(output, tuple):
            return (replace(output[0][0])[None], *output[1:])
        output.last_hidden_state = replace(output.last_hidden_state[0])[None]
        return output

    def enter(_module: object, args: Any) -> Any:
        return (replace(args[0][0])[None], *args[1:])

    if layer == -1:
        handle = decoder.blocks[0].register_forward_pre_hook(enter)
    else:
        handle = decoder.module(layer).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def plain_losses(
    decoder: Decoder, texts: list[str], layer: int, sinks: SinkRule, rebuilt: Callable[[np.ndarray], np.ndarray] | None
) -> float:
    """Nats per token of the model's own loss; states of real tokens that are not sinks are replaced."""
    total, count = 0.0, 0
    for passage in encode(decoder, passages_of(texts)):
        real = np.flatnonzero(~passage.context.special)

        def replace(h_TD: Tensor, real: np.ndarray = real) -> Tensor:
            norms = np.linalg.norm(h_TD.numpy(), axis=1)
            chosen = [n for n in real if norms[n] <= sinks.ratio * np.median(norms[real]) or not sinks.leave_out]
            new_TD = h_TD.clone()
            if rebuilt is not None:
                new_TD[chosen] = torch.from_numpy(rebuilt(h_TD[chosen].numpy()))
            return new_TD

        ids = torch.from_numpy(passage.token_ids)[None]
        with replacing(decoder, layer, replace), torch.no_grad():
            loss = decoder.model(ids, labels=ids).loss
        total, count = total + loss.item() * (ids.shape[1] - 1), count + ids.shape[1] - 1
    return total / count


@pytest.fixture(scope="module")
def trained() -> Decoder:
    """Return a Llama that knows the texts by heart, so that it needs its states."""
    decoder = make_decoder(CONFIGS["llama"])
    model = decoder.model.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    ids = [torch.from_numpy(passage.token_ids)[None] for passage in encode(decoder, passages_of(TEXTS))]
    for _ in range(30):
        optimizer.zero_grad()
        sum(model(each, labels=each).loss for each in ids).backward()
        optimizer.step()
    model.requires_grad_(False)
    return decoder


@pytest.mark.parametrize("layer", [-1, 0, 1, 3])
@pytest.mark.parametrize("sinks", [SinkRule(leave_out=False), MANY_SINKS], ids=["sinks kept", "sinks left out"])
def test_losses_equal_a_plain_forward_pass_with_a_hook(decoder: Decoder, layer: int, sinks: SinkRule) -> None:
    """Layer 3 is the last block of one model, and the states after the last norm of the others."""
    sae = loaded("jumprelu", apply_b_dec=True)
    (found,) = measured(decoder, TEXTS, autoencoder(sae, decoder.device), layer=layer, reading=Reading(sinks=sinks))
    rebuilt = (None, lambda x_TD: sae.decode(sae.encode(x_TD)), np.zeros_like)
    expected = [plain_losses(decoder, TEXTS, layer, sinks, each) for each in rebuilt]
    losses = [found[LOSS_RECOVERED].details[name] for name in ("loss", "loss_reconstructed", "loss_zero")]
    assert losses == pytest.approx(expected, rel=1e-5) and len(set(expected)) == 3


def test_loss_recovered_is_the_share_of_what_zeros_take_away(trained: Decoder) -> None:
    saes = [loaded("topk"), loaded("standard", seed=1)]
    encoders = [autoencoder(sae, trained.device) for sae in saes]
    found = measured(trained, TEXTS, *encoders, reading=KEEP)
    clean, of_zero = (plain_losses(trained, TEXTS, HOOKED_LAYER, KEEP.sinks, each) for each in (None, np.zeros_like))
    for one, sae in zip(found, saes, strict=True):
        own = plain_losses(trained, TEXTS, HOOKED_LAYER, KEEP.sinks, lambda x_TD, sae=sae: sae.decode(sae.encode(x_TD)))
        measure = one[LOSS_RECOVERED]
        assert measure.value == pytest.approx((of_zero - own) / (of_zero - clean), rel=1e-4)
        assert measure.ci_low < measure.value < measure.ci_high and (measure.n, measure.coverage) == (5, 1)


def test_the_identity_recovers_everything_and_zero_nothing(trained: Decoder) -> None:
    same, none = measured(trained, TEXTS, coordinates(WIDTH), zero())
    assert same[LOSS_RECOVERED].value == 1 and none[LOSS_RECOVERED].value == 0
    assert (same[LOSS_RECOVERED].ci_low, none[LOSS_RECOVERED].ci_high) == (1, 0)


def test_blocks_up_to_the_layer_run_once(trained: Decoder) -> None:
    calls: list[int] = []
    before = [
        block.mlp.register_forward_hook(lambda *_, n=n: calls.append(n)) for n, block in enumerate(trained.blocks)
    ]
    measured(trained, TEXTS, coordinates(WIDTH), zero())
    for handle in before:
        handle.remove()
    assert [calls.count(n) for n in range(4)] == [1, 1, 4, 4]  # clean, zeros, and two encoders


def test_batches_order_and_memory_that_runs_out_change_nothing(
    trained: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = autoencoder(loaded("topk"), trained.device)
    (together,) = measured(trained, TEXTS, encoder)
    (alone,) = measured(trained, TEXTS[::-1], encoder, reading=Reading(limits=BatchLimits(max_passages=1)))
    losses_from = module.losses_from

    def small(decoder: Decoder, captured: Captured, *given: Any) -> Tensor:
        if len(captured.lengths) > 2:
            raise torch.OutOfMemoryError("no memory")
        return losses_from(decoder, captured, *given)

    monkeypatch.setattr(module, "losses_from", small)
    (halved,) = measured(trained, TEXTS, encoder)
    for other in (alone, halved):
        assert other[DENSE_SHARE].value == together[DENSE_SHARE].value
        assert other[DENSE_SHARE].details == together[DENSE_SHARE].details
        one, two = other[LOSS_RECOVERED], together[LOSS_RECOVERED]
        assert one.value == pytest.approx(two.value, rel=1e-5)
    assert (halved[LOSS_RECOVERED].ci_low, halved[LOSS_RECOVERED].ci_high) == pytest.approx(
        (together[LOSS_RECOVERED].ci_low, together[LOSS_RECOVERED].ci_high), rel=1e-4
    )


def test_dense_features_by_hand(trained: Decoder) -> None:
    """Of 20 tokens, features are active on 0, 2, 3 and 20. The last two are dense: 2 is not more than a tenth."""
    text = "n" * 20
    (passage,) = encode(trained, passages_of([text]))
    assert len(passage.context.real) == 20
    counts = torch.tensor([0, 2, 3, 20])
    encoder = Encoder("a", 4, lambda x_TD: (torch.arange(len(x_TD))[:, None] < counts).float())
    (found,) = measured(trained, [text], encoder, reading=KEEP)
    assert (found[DENSE_SHARE].value, found[DENSE_SHARE].n) == (0.5, 4)
    assert found[DENSE_SHARE].details == {"num_tokens": 20}


def test_what_has_no_way_back_or_no_next_token_has_no_loss(trained: Decoder) -> None:
    own = autoencoder(loaded("topk"), trained.device)
    twin = random_twin(own, WIDTH, 0, trained.device)
    (found,) = measured(trained, TEXTS, twin)
    assert (found[LOSS_RECOVERED].value, found[LOSS_RECOVERED].status) == (None, "not_implemented")
    assert found[DENSE_SHARE].status == "ok"
    config = BertConfig(
        vocab_size=400, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    encoder = wrap_encoder(BertModel(config), make_tokenizer())
    (found,) = measured(encoder, TEXTS, coordinates(WIDTH))
    assert (found[LOSS_RECOVERED].status, found[DENSE_SHARE].status) == ("not_implemented", "ok")
    assert found[LOSS_RECOVERED].reason == "an encoder of text predicts no next token"


def test_a_head_that_reads_something_else_is_a_reason(trained: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_decoder(CONFIGS["llama"])
    monkeypatch.setattr(gradients, "_trunk", lambda _: other.backbone)
    (found,) = measured(trained, TEXTS, coordinates(WIDTH))
    assert found[LOSS_RECOVERED].status == "failed" and "does not read" in (found[LOSS_RECOVERED].reason or "")
    assert found[DENSE_SHARE].status == "ok"


def test_zeros_that_do_no_harm_leave_nothing_to_recover(llama: Decoder) -> None:
    """The model was never trained: without the states of its last block it guesses evenly, which is better."""
    reading = Reading(include_bos=True, sinks=KEEP.sinks)
    (found,) = measured(llama, TEXTS, coordinates(WIDTH), layer=3, reading=reading)
    assert found[LOSS_RECOVERED].status == "no_effect"
    assert found[LOSS_RECOVERED].details["loss_zero"] == pytest.approx(math.log(400), rel=1e-5)


def test_texts_that_cannot_be_read_are_left_out(trained: Decoder) -> None:
    token = encode(trained, passages_of(["z"]))[0].token_ids[-1]
    assert all(token not in passage.token_ids for passage in encode(trained, passages_of(TEXTS)))
    weight = trained.backbone.get_input_embeddings().weight
    kept = weight[token].clone()
    (expected,) = measured(trained, TEXTS, coordinates(WIDTH))
    try:
        weight.data[token] = torch.nan
        (found,) = measured(trained, [*TEXTS, "long " * 200, "z z z"], coordinates(WIDTH))
        (broken,) = measured(trained, ["z z z"], coordinates(WIDTH))
    finally:
        weight.data[token] = kept
    for metric in (LOSS_RECOVERED, DENSE_SHARE):
        assert found[metric].value == expected[metric].value and found[metric].coverage == pytest.approx(5 / 7)
        assert (broken[metric].value, broken[metric].status) == (None, "non_finite")
    assert found[LOSS_RECOVERED].details == pytest.approx(expected[LOSS_RECOVERED].details, rel=1e-5)


def test_the_service_commits_measures_of_each_encoder(artifacts: Artifacts, saved_llama: Path) -> None:
    artifacts.write("import.sae.1", saved("topk"))
    roles = {"features/x": "out.1", "random/x": "out.2", "coordinates": "out.3"}
    inputs = {"passages": "corpus.passages.1", "sae/x": "import.sae.1"}
    params = {"model": str(saved_llama), "layer": 1}
    task = Task(kind="extractor.recovered", inputs=inputs, outputs=roles, params=params)
    run(task, artifacts)
    rows = [{row["metric"]: row for row in artifacts.read_table(key).to_pylist()} for key in roles.values()]
    assert all(row.keys() == {LOSS_RECOVERED, DENSE_SHARE} for row in rows)
    assert "loss_zero" in json.loads(rows[0][LOSS_RECOVERED]["details"])
    assert rows[1][LOSS_RECOVERED]["status"] == "not_implemented"
