"""Refuse models that are neither causal decoders nor encoders of text, before any passage is read."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

from poolbench.errors import ModelError
from poolbench_extractor.models.attention import watching

#: Two inputs that differ in their last token only.
_PROBE = ((3, 4, 5, 6), (3, 4, 5, 7))
#: Relative difference of states that should be equal; kernels may round rows of a batch differently.
_TOLERANCE = {torch.float32: 1e-4}
_HALF_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Behaviour:
    """Results of a short forward pass."""

    causal: bool  # whether earlier states do not change when a later token changes
    observed: bool


#: Transformers counts text parts of other models among the encoders of text; those that are decoders, or see pictures.
_NO_ENCODERS = {"clip_text_model", "emu3", "llama4", "mllama", "t5gemma", "tipsv2_text_model"}


#: Models whose encoder Transformers loads only together with their decoder.
_HALVES = {"bart"}


def is_half(config: Any) -> bool:
    """Return whether Transformers loads the encoder of this model only together with its decoder (BART)."""
    return config.model_type in _HALVES and config.is_encoder_decoder


def is_encoder(config: Any) -> bool:
    """Return whether a model is used as a text encoder: models like BERT, or the encoder half of T5 or BART."""
    encoder_types = set(MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES) - _NO_ENCODERS | _HALVES
    return config.model_type in encoder_types and not (
        getattr(config, "is_decoder", False) and not config.is_encoder_decoder
    )


def check_config(config: Any, source: str, *, own_code: bool = False) -> None:
    """Raise ModelError unless the model is a decoder or a text encoder that Transformers knows.

    Args:
        own_code: Whether the model class comes from the model repository. Transformers need not know such a class.
    """
    if is_encoder(config):
        return
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model {source} ({config.model_type}) is an encoder-decoder model; a decoder is needed")
    if not own_code and type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"model {source} ({config.model_type}) is not a language model that Transformers knows")


def check_causal(behaviour: Behaviour, model: Any, source: str) -> None:
    """Raise ModelError for a model in which later tokens change earlier states."""
    if not behaviour.causal:
        raise ModelError(
            f"{source} ({type(model).__name__}) is not a causal decoder: its states look at later tokens. "
            "Name a causal decoder, or an encoder of text such as BERT or T5"
        )


def probe(backbone: nn.Module, blocks: nn.ModuleList, device: torch.device) -> Behaviour:
    """Test whether a model is causal and whether its attention can be observed.

    Two inputs of four tokens that differ only in the last token are run, and the states of the last block are compared.
    The behaviour is tested and not the configuration, because configuration flags differ between architectures and are
    often absent.
    """
    reports: list[bool] = []

    def report(*_tensors: Tensor, **_settings: Any) -> None:
        reports.append(True)

    with watching(dict.fromkeys(backbone.modules(), report)):
        one, other = _last_states(backbone, blocks, input_ids=torch.tensor(_PROBE, device=device))
    return Behaviour(_alike(one[:-1], other[:-1]), bool(reports))


def pads_left(backbone: nn.Module, blocks: nn.ModuleList, device: torch.device, *, positions: bool) -> bool:
    """Return whether the states stay the same under masked padding on the left.

    They change in state-space models, which read padding as input.
    """
    ids = torch.tensor(_PROBE, device=device)
    padded = {"input_ids": torch.nn.functional.pad(ids, (2, 0))}
    padded["attention_mask"] = (torch.arange(6, device=device) >= 2).long().expand(2, -1)
    if positions:
        padded["position_ids"] = (torch.arange(6, device=device) - 2).clamp_min(0).expand(2, -1)
    return _alike(_last_states(backbone, blocks, input_ids=ids), _last_states(backbone, blocks, **padded)[:, 2:])


@torch.no_grad()
def _last_states(backbone: nn.Module, blocks: nn.ModuleList, **inputs: Tensor) -> Tensor:
    """Return the output of the last block, [B, T, D]."""
    states: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    handle = blocks[-1].register_forward_hook(keep)
    try:
        backbone(**inputs, use_cache=False)
    finally:
        handle.remove()
    return states[0]


def _alike(one: Tensor, other: Tensor) -> bool:
    # Token by token: beside the first token of a trained model, the differences of all others vanish.
    gaps = torch.linalg.norm((one - other).double(), dim=-1) / torch.linalg.norm(one.double(), dim=-1)
    # Written so that NaN passes: broken weights are reported passage by passage.
    return not bool((gaps > _TOLERANCE.get(one.dtype, _HALF_TOLERANCE)).any())
