"""Where there is no gradient the cells of S2 and G1 fail alone, with a reason; the rest goes on."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from poolbench.pooling.batch import Request
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading, encode
from poolbench_extractor.forward import gradients
from poolbench_extractor.models.decoder import Decoder

from .conftest import CONFIGS, TEXTS, make_decoder, passages_of

REQUESTS = [Request.of(name) for name in ("A1_mean", "S1_attention", "S2_gradient", "G1_input_x_gradient")]


def statuses(decoder: Decoder, texts: list[str], **reading: object) -> dict[str, list[tuple[str, str | None]]]:
    passages = passages_of(texts)
    tables = extract(decoder, passages, {1: REQUESTS}, reading=Reading(**reading))
    return {
        role.partition("/")[0]: list(zip(*(table[name].to_pylist() for name in ("status", "reason")), strict=True))
        for role, table in tables.items()
    }


def test_a_passage_of_one_token_has_no_gradient_and_the_rest_goes_on(llama: Decoder, without_bos: Any) -> None:
    rows = statuses(llama, ["a", TEXTS[0], ""])
    assert [status for status, _ in rows["A1_mean"]] == ["ok", "ok", "failed"]
    for name in ("S2_gradient", "G1_input_x_gradient"):
        assert [status for status, _ in rows[name]] == ["too_few", "ok", "failed"]
        assert "one token" in rows[name][0][1] and "no real token" in rows[name][2][1]
    assert statuses(replace(llama, tokenizer=without_bos), ["a"])["S2_gradient"][0][0] == "too_few"


def test_models_without_gradients_fail_these_cells_alone(llama: Decoder) -> None:
    quantised = replace(llama, model=copy.copy(llama.model))
    quantised.model.hf_quantizer = object()
    rows = statuses(quantised, TEXTS)
    assert {status for name in ("A1_mean", "S1_attention") for status, _ in rows[name]} == {"ok"}
    assert {status for status, _ in rows["S2_gradient"]} == {"failed"} and "quantised" in rows["S2_gradient"][0][1]
    decoder = make_decoder(CONFIGS["llama"])
    decoder.blocks[2].mlp.register_forward_hook(lambda _module, _args, output: Kernel.apply(output))
    rows = statuses(decoder, TEXTS)
    assert {status for name in ("A1_mean", "S1_attention") for status, _ in rows[name]} == {"ok"}
    assert {status for status, _ in rows["S2_gradient"]} == {"failed"}
    assert "cannot be differentiated" in rows["S2_gradient"][0][1]


class Kernel(torch.autograd.Function):
    """A kernel that somebody wrote without a backward."""

    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


def test_a_head_that_reads_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(CONFIGS["llama"])
    monkeypatch.setattr(gradients, "_trunk", lambda found: found.model.model.norm)
    rows = statuses(decoder, TEXTS[:1])
    assert rows["A1_mean"][0][0] == "ok" and rows["S2_gradient"][0][0] == "failed"
    other = make_decoder(CONFIGS["llama"])
    output = other.backbone(torch.tensor([[1, 2]]))
    monkeypatch.setattr(gradients, "_trunk", lambda _: other.backbone)
    with pytest.raises(RuntimeError, match="does not read the output"):
        gradients.head_logits(decoder, output, output[0][0])


def test_states_that_are_not_finite_stay_in_their_row() -> None:
    decoder = make_decoder(CONFIGS["llama"])
    ids = encode(decoder, PassageTexts(["p0", "p1"], [TEXTS[0], "zzz"]))
    only = next(token for token in ids[1].token_ids[1:] if token not in ids[0].token_ids)
    with torch.no_grad():
        decoder.model.get_input_embeddings().weight[only] = torch.nan
    rows = statuses(decoder, [TEXTS[0], "zzz"])
    for name, outcome in rows.items():
        assert [status for status, _ in outcome] == ["ok", "non_finite"], name


def test_out_of_memory_in_the_backward_halves_the_batch(llama: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statuses(llama, TEXTS)
    tried: list[int] = []
    backward = torch.autograd.grad

    def tight(outputs: torch.Tensor, *args: object) -> tuple[torch.Tensor, ...]:
        if outputs.dim() == 3:
            tried.append(len(outputs))
            if len(outputs) > 2:
                raise torch.OutOfMemoryError("out of memory")
        return backward(outputs, *args)

    monkeypatch.setattr(torch.autograd, "grad", tight)
    assert statuses(llama, TEXTS) == whole
    assert tried == [5, 2, 3, 1, 2]
