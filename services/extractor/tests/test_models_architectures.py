"""States, inflow and losses are the model's own: against the eager model on each passage alone, by architecture."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from services.extractor.tests.conftest import TEXTS
from services.extractor.tests.forward.test_capture import inflow_by_definition
from services.extractor.tests.test_damage import check
from services.extractor.tests.test_features import KEEP
from services.extractor.tests.test_recovered import LOSS_RECOVERED, measured, plain_losses
from tests.zoo import watched

from poolbench.config import EMBEDDING_INDEX
from poolbench.pooling.batch import Request
from poolbench.pooling.sinks import SinkRule
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded
from poolbench_extractor.features import coordinates
from poolbench_extractor.forward.batching import make_batches
from poolbench_extractor.forward.capture import capture
from poolbench_extractor.models.checks import pads_left, probe
from poolbench_extractor.models.decoder import Decoder

from .architectures import ARCHITECTURES, BOTH, CASES, LAYERS, encoded, relative

#: The first token of trained-like weights is a sink; its attention is compared, too.
INCLUDE = SinkRule(leave_out=False)


def eager_outputs(decoder: Decoder, passages: Sequence[Encoded]) -> list[tuple[list[torch.Tensor], Any]]:
    """What blocks of the model put out for each passage alone, and its attention, where it materialises one."""
    model = copy.deepcopy(decoder.model)
    if decoder.observed:
        model.set_attn_implementation("eager")
    made = []
    for passage in passages:
        with torch.inference_mode(), watched(model) as streams:
            output = model(
                torch.from_numpy(passage.token_ids)[None],
                use_cache=False,
                **({"output_attentions": True} if decoder.observed else {}),
            )
        made.append((streams, getattr(output, "attentions", None)))
    return made


@pytest.mark.parametrize(("name", "trained"), BOTH)
def test_states_and_inflow_are_the_models_own(
    name: str, trained: bool, decoder_of: Callable[..., Decoder], models_table: Callable[..., None]
) -> None:
    decoder = decoder_of(name, trained)
    assert decoder.observed is CASES[name].observed
    assert (decoder.num_blocks, decoder.width) == (2, 32)
    passages = encoded(decoder, TEXTS)
    gaps: dict[str, float] = {"states": 0.0} | ({"inflow": 0.0} if decoder.observed else {})
    for side in ("right", "left"):
        read = capture_all(decoder, passages, side)
        for index, (streams, attentions) in enumerate(eager_outputs(decoder, passages)):
            for layer in LAYERS:
                state = read[index, layer].state.numpy()
                gaps["states"] = max(gaps["states"], relative(state, streams[layer][0].numpy()))
            for layer in LAYERS if decoder.observed else ():
                real = ~passages[index].context.special
                expected = inflow_by_definition(attentions[layer][0].numpy(), real).mean(axis=0)
                gaps["inflow"] = max(gaps["inflow"], relative(read[index, layer].signals["inflow"], expected))
    assert max(gaps.values()) < 1e-5, gaps
    if name in ARCHITECTURES:
        models_table(name, trained, {f"extractor_{kind}": gap for kind, gap in gaps.items()})


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_embedding_is_what_the_first_block_reads(name: str, decoder_of: Callable[..., Decoder]) -> None:
    """Positions (GPT-2, OPT), a scale (Gemma) or a norm (Bloom) come after the embedding of the tokens."""
    decoder = decoder_of(name)
    passages = encoded(decoder, TEXTS)
    for batch in make_batches(passages, BatchLimits()):
        for passage, found in zip(batch, capture(decoder, batch, [EMBEDDING_INDEX]).states_of(-1), strict=True):
            with torch.inference_mode():
                ids = torch.from_numpy(passage.token_ids)[None]
                if name == "mamba":  # its `hidden_states` begin after the first block
                    expected = decoder.backbone.get_input_embeddings()(ids)
                else:
                    expected = decoder.backbone(ids, use_cache=False, output_hidden_states=True).hidden_states[0]
            torch.testing.assert_close(found, expected[0])


class Read(NamedTuple):
    """What one capture gave of one passage at one layer."""

    state: torch.Tensor
    signals: Any


def capture_all(decoder: Decoder, passages: Sequence[Encoded], side: str = "right") -> dict[tuple[int, int], Read]:
    """States and inflow by passage and layer, in as few batches as the model allows."""
    found = {}
    for batch in make_batches(passages, BatchLimits()):
        signals = dict.fromkeys(LAYERS, ("inflow",))
        captured = capture(decoder, batch, LAYERS, signals=signals, sinks=INCLUDE, padding_side=side)
        for layer in LAYERS:
            rows = map(Read, captured.states_of(layer), captured.signals_of(layer))
            found |= {(passage.index, layer): row for passage, row in zip(batch, rows, strict=True)}
    return found


@pytest.mark.parametrize("name", [name for name, case in sorted(CASES.items()) if not case.observed])
def test_without_visible_attention_the_rest_goes_on(
    name: str, decoder_of: Callable[..., Decoder], models_table: Callable[..., None]
) -> None:
    decoder = decoder_of(name)
    wanted = {1: [Request.of("A1_mean"), Request.of("S1_attention")]}
    tables = extract(decoder, encoded(decoder, TEXTS), wanted)
    assert set(tables["A1_mean/1"]["status"].to_pylist()) == {"ok"}
    assert set(tables["S1_attention/1"]["status"].to_pylist()) == {"failed"}
    reason = tables["S1_attention/1"]["reason"][0].as_py()
    assert "cannot be observed" in reason
    if name in ARCHITECTURES:
        models_table(name, False, {"extractor_refuses": f"`S1_attention`: {reason}"})


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


class Encoder(torch.nn.Module):
    """Adds to each token what comes after it; its first token is large enough to hide all others."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4).to(dtype)
        self.blocks = torch.nn.ModuleList([torch.nn.Identity()])

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        states = self.embedding(input_ids)
        states = states + states.flip(1).cumsum(1).flip(1)
        states[:, 0] += 1e5
        return self.blocks[0](states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_first_token_does_not_hide_that_a_model_looks_ahead(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Encoder(dtype)
    assert not probe(model, model.blocks, torch.device("cpu")).causal


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_architecture_goes_on_from_a_layer(name: str, decoder_of: Callable[..., Decoder]) -> None:
    decoder = decoder_of(name)
    (found,) = measured(decoder, TEXTS, coordinates(decoder.width), layer=0, reading=KEEP)
    expected = [plain_losses(decoder, TEXTS, 0, KEEP.sinks, each) for each in (None, np.zeros_like)]
    losses = [found[LOSS_RECOVERED].details[name] for name in ("loss", "loss_zero")]
    assert losses == pytest.approx(expected, rel=1e-5) and losses[0] != losses[1]


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_architecture_is_steered_as_by_a_hook(name: str, decoder_of: Callable[..., Decoder]) -> None:
    check(decoder_of(name), TEXTS[:2], layer=0, strengths=(0.5,), first=1)
