"""Change the weights of a model: apply a fine-tune, apply a random change of equal norm, or draw random weights."""

import copy
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer

from poolbench.config import ADAPTER_FILE, MOVING_STARTS, change_revision
from poolbench.errors import ModelError
from poolbench.steps.extractor import ChangeParams, RandomWeights

#: Settings that make two checkpoints of one architecture comparable.
_SHAPE = (
    "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "tie_word_embeddings",
)  # fmt: skip
#: Beginning of the names of an adapter's weights; and what follows the name of a module.
_PEFT, _LOW_RANK = "base_model.model.", (".lora_A.", ".lora_B.")
#: Settings of LoRA that change more than the product of two matrices added to a weight, or other weights too.
_MORE_THAN_LORA = (
    "use_dora", "modules_to_save", "lora_bias", "alora_invocation_tokens", "arrow_config", "kasa_config",
    "layer_replication", "monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora",
    "use_qalora",
)  # fmt: skip
#: Beginnings of training that leave the base as it is.
_PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal")


def apply_change(
    model: Any, change: ChangeParams | RandomWeights, config: Any, tokenizer: Any, read: Callable[[str], Any]
) -> None:
    """Change the weights of `model` in place.

    Args:
        config, tokenizer: Configuration and tokenizer of `model`. A fine-tuned checkpoint must match both.
        read: Function that loads the model in a folder, as `model` was loaded.

    Raises:
        ModelError: The folder changed since planning, is not a fine-tune of this model, or is an adapter of an
            unsupported kind.
    """
    if isinstance(change, RandomWeights):  # what the architecture starts its training from, drawn on the CPU in float32
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.manual_seed(change.seed)
            fresh = dict(type(model)(copy.deepcopy(model.config)).named_parameters())
            for name, weight in model.named_parameters():
                weight.copy_(fresh[name].to(weight.device, weight.dtype))
        return
    folder = Path(change.source)
    if (revision := change_revision(folder)) != change.revision:
        raise ModelError(
            f"fine-tune {folder} is at revision {revision}, asked for {change.revision}; plan the run again"
        )
    if (folder / ADAPTER_FILE).is_file():
        deltas = _deltas_of_adapter(model, folder)
    else:
        _require_same_model(folder, config, tokenizer)
        deltas = _deltas_of_checkpoint(model, read(change.source))
    with torch.no_grad():
        for name, delta in deltas:
            weight, seed = model.get_parameter(name), change.random_seed
            added = delta if seed is None else shuffled(delta, seed, name)
            weight.copy_((weight.float() + added.to(weight.device)).to(weight.dtype))


def shuffled(delta: Tensor, seed: int, name: str) -> Tensor:
    """Permute every axis of a weight change at random, and flip random signs along each axis.

    This multiplies a matrix by random orthogonal matrices from both sides, so its singular values do not change.

    Args:
        name: Name of the weight. Each weight gets its own random draws.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    for axis, size in enumerate(delta.shape):
        order = torch.randperm(size, generator=generator)
        signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
        shape = [-1 if other == axis else 1 for other in range(delta.ndim)]
        delta = delta.index_select(axis, order.to(delta.device)) * signs.to(delta).view(shape)
    return delta


def _deltas_of_adapter(model: Any, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the float32 change of each weight that a LoRA adapter changes. The model is not changed.

    PiSSA and OLoRA subtract the initial product of the adapter from the base, and PEFT subtracts it again when it reads
    the adapter. The change is relative to the original base: the trained product minus the initial product.

    Reference: Meng et al. (2024), PiSSA; Büyükakyüz (2024), OLoRA.
    """
    from peft import PeftConfig, PeftModel  # takes seconds to import

    try:
        settings = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ModelError(f"adapter {folder}: {ADAPTER_FILE} cannot be read: {error}") from None
    what = next((name for name in _MORE_THAN_LORA if getattr(settings, name, None)), None)
    if getattr(settings, "peft_type", None) != "LORA":
        what = f"type {settings.peft_type}"
    elif what is None and settings.init_lora_weights not in (*_PLAIN_STARTS, *MOVING_STARTS):
        # Their start needs data, a gradient or a random draw that the adapter does not hold.
        what = f"init_lora_weights {settings.init_lora_weights!r}"
    if what is not None:
        raise ModelError(
            f"adapter {folder} has {what}; only plain LoRA, PiSSA and OLoRA are read: merge it into a checkpoint and "
            "name that"
        )
    names = _adapted_modules(model, folder)
    weights = {name: model.get_parameter(f"{name}.weight") for name in names}
    moves = settings.init_lora_weights in MOVING_STARTS
    before = {name: weight.detach().clone() for name, weight in weights.items()} if moves else {}
    try:
        adapted: Any = PeftModel.from_pretrained(model, str(folder), autocast_adapter_dtype=True)
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"adapter {folder} does not fit this model: {str(error).strip().splitlines()[-1]}") from None
    try:
        deltas = {
            name: adapted.base_model.model.get_submodule(name).get_delta_weight("default").float() for name in names
        }
    finally:
        adapted.unload()
    for name, weight in before.items():
        moved = model.get_parameter(f"{name}.weight")
        deltas[name] += moved.detach().float() - weight.float()
        moved.data = weight
    yield from ((f"{name}.weight", delta) for name, delta in sorted(deltas.items()))


def _adapted_modules(model: nn.Module, folder: Path) -> list[str]:
    """Return the names of the modules that an adapter changes.

    Raise ModelError if the adapter has other weights than LoRA's or none, or if the model lacks a module.
    """
    keys = list[str]()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            keys += weights.keys()
    others = sorted(key for key in keys if not any(part in key for part in _LOW_RANK))
    if others:
        raise ModelError(
            f"adapter {folder} has {others[0].removeprefix(_PEFT)}; only LoRA weights of linear layers are read: "
            "merge it into a checkpoint and name that"
        )
    names = sorted({key.removeprefix(_PEFT).partition(_LOW_RANK[0])[0] for key in keys if _LOW_RANK[0] in key})
    modules = {name for name, _ in model.named_modules()}
    absent = [name for name in names if name not in modules]
    if absent or not names:
        reason = f"it changes {absent[0]}, which the model does not have" if absent else "it has no LoRA weights"
        raise ModelError(f"adapter {folder} does not fit this model: {reason}; it belongs to another one")
    return names


def _require_same_model(folder: Path, config: Any, tokenizer: Any) -> None:
    """Raise ModelError if a checkpoint cannot be read, or has another architecture or tokenizer than the model.

    A checkpoint without a tokenizer is allowed.
    """
    try:
        other = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"checkpoint {folder}: config.json cannot be read: {str(error).splitlines()[0]}") from None
    before_config = config.get_text_config(decoder=True)
    for name in _SHAPE:
        before, after = getattr(before_config, name, None), getattr(other, name, None)
        if before != after:
            raise ModelError(
                f"checkpoint {folder} has {name} {after}, and the model before it {before}: not a fine-tune of it"
            )
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return  # weights alone: the tokenizer of the model is used for both
    try:
        before, after = tokenizer.get_vocab(), AutoTokenizer.from_pretrained(folder).get_vocab()
    except (OSError, ValueError) as error:
        raise ModelError(f"checkpoint {folder}: its tokenizer cannot be read: {str(error).splitlines()[0]}") from None
    if before != after:
        example = sorted(before.items() ^ after.items())[0][0]
        raise ModelError(f"checkpoint {folder} has another tokenizer than the model before it: {example!r} differs")


def _deltas_of_checkpoint(model: nn.Module, after: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the float32 change of each weight that differs."""
    changed = dict(after.named_parameters())
    for name, weight in model.named_parameters():
        delta = changed[name].float() - weight.float()
        if delta.any():
            yield name, delta
