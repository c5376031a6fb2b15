"""States and inflow are the model's own: against the eager model on each passage alone, for every architecture."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract_encoded
from poolbench_extractor.encode import Encoded
from poolbench_extractor.forward.batching import make_batches
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.checks import pads_left, probe
from poolbench_extractor.models.decoder import Decoder

from .conftest import CASES, LAYERS, encoded, relative


def inflow_by_definition(attention_HTT: np.ndarray, real_T: np.ndarray) -> np.ndarray:
    """Position-corrected inflow over real tokens, from the model's own attention."""
    A_HTT = attention_HTT[:, real_T][:, :, real_T].astype(np.float64)
    A_HTT = A_HTT / A_HTT.sum(-1, keepdims=True)
    rank_T = np.arange(A_HTT.shape[1])
    inflow = np.zeros(len(real_T))
    inflow[real_T] = np.einsum("hqj,q->j", A_HTT, rank_T + 1.0) / len(A_HTT) / (len(rank_T) - rank_T)
    return inflow


def eager_outputs(decoder: Decoder, passages: Sequence[Encoded], *, attentions: bool) -> list[Any]:
    """What the model itself returns for each passage alone, with the attention that materialises its matrix."""
    model = copy.deepcopy(decoder.model)
    if attentions:
        model.set_attn_implementation("eager")
    with torch.inference_mode():
        return [
            model(
                torch.from_numpy(passage.token_ids)[None],
                output_hidden_states=True,
                use_cache=False,
                **({"output_attentions": True} if attentions else {}),
            )
            for passage in passages
        ]


@pytest.mark.parametrize("name", sorted(CASES))
def test_states_and_inflow_are_the_models_own(
    name: str, decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    assert decoder.observed is CASES[name].observed
    assert (decoder.num_blocks, decoder.width) == (2, 32)
    passages = encoded(decoder, texts)
    norm = final_norm(decoder)
    for side in ("right", "left"):
        read = capture_all(decoder, passages, side)
        for index, output in enumerate(eager_outputs(decoder, passages, attentions=decoder.observed)):
            own = output.hidden_states
            assert relative(read[index, 0].state.numpy(), own[CASES[name].first_output][0].numpy()) < 1e-5
            # Theirs ends behind the last norm.
            assert relative(norm(read[index, 1].state).numpy(), own[2][0].numpy()) < 1e-5
            for layer in LAYERS if decoder.observed else ():
                real = ~passages[index].context.special
                expected = inflow_by_definition(output.attentions[layer][0].numpy(), real)
                assert relative(read[index, layer].signals["inflow"], expected) < 1e-5, (side, layer, index)


class Read(NamedTuple):
    """What one capture gave of one passage at one layer."""

    state: torch.Tensor
    signals: Any


def capture_all(decoder: Decoder, passages: Sequence[Encoded], side: str = "right") -> dict[tuple[int, int], Read]:
    """States and inflow by passage and layer, in as few batches as the model allows."""
    found = {}
    for batch in make_batches(passages, BatchLimits()):
        captured = capture(decoder, batch, LAYERS, signals=dict.fromkeys(LAYERS, ("inflow",)), padding_side=side)
        for layer in LAYERS:
            rows = map(Read, captured.states_of(layer), captured.signals_of(layer))
            found |= {(passage.index, layer): row for passage, row in zip(batch, rows, strict=True)}
    return found


def final_norm(decoder: Decoder) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the model does to the last block's output before it returns it."""
    names = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "project_out")
    found = [getattr(decoder.backbone, name, None) for name in names]
    steps = [module for module in found if module is not None]
    assert len(steps) == 1
    return torch.inference_mode()(steps[0])


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_without_visible_attention_the_rest_goes_on(
    name: str, decoder_of: Callable[[str], Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    wanted = {1: [Request.of("A1_mean"), Request.of("S1_attention")]}
    tables = extract_encoded(decoder, encoded(decoder, texts), wanted)
    assert set(tables["A1_mean/1"]["status"].to_pylist()) == {"ok"}
    assert set(tables["S1_attention/1"]["status"].to_pylist()) == {"failed"}
    assert "cannot be observed" in tables["S1_attention/1"]["reason"][0].as_py()


class Recurrent(torch.nn.Module):
    """Sums what came before and knows no mask, like the recurrent models that cannot be padded on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.blocks = torch.nn.ModuleList([torch.nn.Identity()])

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, use_cache: bool = False) -> torch.Tensor:
        return self.blocks[0](self.embedding(input_ids).cumsum(1))


def test_a_model_that_reads_padding_is_found_out() -> None:
    torch.manual_seed(0)
    model, cpu = Recurrent(), torch.device("cpu")
    assert probe(model, model.blocks, cpu).causal and not probe(model, model.blocks, cpu).observed
    assert not pads_left(model, model.blocks, cpu, positions=False)
