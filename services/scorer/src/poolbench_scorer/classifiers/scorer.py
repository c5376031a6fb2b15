"""Scorers: loading them from stored files, and the modules that compute their logits."""

import gc
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    PreTrainedModel,
)
from transformers.models.bert.modeling_bert import BertLayer, BertModel

from poolbench.errors import InputError, ModelError
from poolbench.model_folders.bases import Base, find_base, weight_files
from poolbench.steps.scorer import CONFIG, FORMAT_VERSION, IMPORTED, WEIGHTS
from poolbench_scorer.classifiers.windows import BaseTokenizer

#: What is trained where a checkpoint lacks it.
_TRAINED = re.compile(r"^classifier\.|\.pooler\.")


def load_classifier(base: Base, *, complete: bool = False, **options: object) -> PreTrainedModel:
    """Load a base model as a sequence classifier in float32 and evaluation mode.

    Args:
        complete: Whether all weights must be present. If False, the weights of the pooler and the head may be missing.
            Transformers then draws them at random, and training replaces them.
        options: Settings of the model's configuration, such as `num_labels`.

    Raises:
        ModelError: Transformers cannot read the model, weights are missing, or some weights are not finite.
    """
    safe = weight_files(base.folder, base.name)[0].suffix == ".safetensors"
    try:
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            str(base.folder), dtype=torch.float32, trust_remote_code=False, local_files_only=True,
            use_safetensors=safe, output_loading_info=True, disable_mmap=True, **options,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"scorer base {base.name!r} does not load as a sequence classifier: {error}") from None
    missing = [name for name in sorted(loaded["missing_keys"]) if complete or not _TRAINED.search(name)]
    if missing:
        others = sorted(loaded["unexpected_keys"])[:1]
        instead = f"; it has others that the model does not have, such as {others[0]}" if others else ""
        raise ModelError(f"{base.name!r} lacks weights of its classifier: {', '.join(missing[:4])}{instead}")
    if broken := [name for name, tensor in model.named_parameters() if not torch.isfinite(tensor).all()]:
        raise ModelError(f"{base.name!r} has weights that are not finite: {', '.join(broken[:4])}")
    return model.eval()


@dataclass(frozen=True)
class Scorer:
    """A loaded classifier for one concept."""

    concept: str
    encoder: nn.Module  # token ids and mask to states; shared by scorers of equal `encoder_id`
    encoder_id: str  # weights, depth and device of the encoder
    head: nn.Module  # states and mask to two logits: absent, present
    tokens: BaseTokenizer
    temperature: float  # divides the difference of the logits


class TokenIds(nn.Module):
    """Encoder that returns its token ids, for classifiers that share no layers with other scorers."""

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return ids_BT


class WholeClassifier(nn.Module):
    """Head that runs a whole Hugging Face sequence classifier on token ids.

    `positive` and `independent` are described at `imported.Positive`.
    """

    def __init__(self, model: PreTrainedModel, positive: int, independent: bool):
        super().__init__()
        self.model = model
        self.positive = positive
        self.independent = independent

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return logits [B, 2]: zero, and the log odds of the positive label against the competing labels."""
        logits_BL = self.model(input_ids=ids_BT, attention_mask=mask_BT.long()).logits
        if self.independent:
            odds_B = logits_BL[:, self.positive]
        else:
            others = [label for label in range(logits_BL.shape[1]) if label != self.positive]
            odds_B = logits_BL[:, self.positive] - logits_BL[:, others].logsumexp(dim=1)
        return torch.stack([torch.zeros_like(odds_B), odds_B], dim=1)


def pick_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_tokens(base: Base) -> BaseTokenizer:
    """Load the tokenizer of a base model. Raise ModelError if Transformers cannot read it."""
    try:
        return BaseTokenizer(
            AutoTokenizer.from_pretrained(str(base.folder), local_files_only=True, trust_remote_code=False)
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"scorer base {base.name!r} has no usable tokenizer: {error}") from None


def cut_model(model: PreTrainedModel, depth: int, num_layers: int | None = None) -> "tuple[Encoder, Head]":
    """Split a BERT model into a frozen part (the lowest `depth` layers) and a trained part (the layers above).

    Args:
        num_layers: Number of lowest layers to use. The layers above them are removed from `model`. The default is all.

    Raises:
        ModelError: The model is not a BERT model or has too few layers.
    """
    if model.config.model_type != "bert":
        raise ModelError(
            f"scorer base of type {model.config.model_type!r}: training takes BERT (model_type bert); "
            "other classifiers can be imported with mode import"
        )
    most = model.config.num_hidden_layers
    if num_layers is not None and num_layers > most:
        raise ModelError(f"num_layers {num_layers}: the base has {most}; ask for 1..{most}")
    num_used = num_layers or most
    if not 0 <= depth < num_used:
        raise ModelError(f"{num_used - depth} trained layers: of the base {num_used} are used; ask for 1..{num_used}")
    assert isinstance(model, BertForSequenceClassification)
    del model.bert.encoder.layer[num_used:]
    return Encoder(model.bert, depth), Head(model, depth)


@lru_cache(maxsize=4)
def shared_encoder(base: Base, depth: int, device: torch.device) -> "Encoder":
    """Return the frozen layers of a base model. All scorers with this base and depth share them."""
    return cut_model(load_classifier(base, num_labels=2), depth)[0].to(device)


def release_encoders() -> None:
    """Drop the cached shared encoders, and return unused GPU memory."""
    shared_encoder.cache_clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_scorer(read: Callable[[str], bytes], names: list[str], device: torch.device) -> Scorer:
    """Load a scorer from its files.

    Raises:
        InputError: The configuration is missing, its format is unknown, or the weights do not fit the base model.
        ModelError: The base model is missing, cannot be loaded, or has other weights than in training.
    """
    if CONFIG not in names:
        raise InputError(f"scorer artifact without {CONFIG}; it has {', '.join(names)}")
    config = json.loads(read(CONFIG))
    if config.get("format") != FORMAT_VERSION:
        raise InputError(f"scorer format {config.get('format')!r}: this version reads {FORMAT_VERSION}; train it again")
    if config["kind"] == "import":
        return _imported({name: read(name) for name in names if name.startswith(IMPORTED)}, config, device)
    return _trained(read(WEIGHTS), config, device)


def _trained(weights: bytes, config: Mapping[str, Any], device: torch.device) -> Scorer:
    base = find_base(config["base"], config["base_commit"])
    if base.revision != config["base_revision"]:
        raise ModelError(
            f"scorer of {config['concept']} was trained on {config['base']} {config['base_revision']}, but "
            f"here it is {base.revision}; install the same weights or train it again"
        )
    depth, frozen = config["depth"], config["kind"] == "head"
    model = load_classifier(base, num_labels=2)
    unknown = model.load_state_dict(load_tensors(weights), strict=False).unexpected_keys
    if unknown:
        raise InputError(f"scorer weights hold tensors that the base lacks: {', '.join(unknown[:3])}")
    own_encoder, head = cut_model(model, depth, config.get("num_layers"))
    encoder = shared_encoder(base, depth, device) if frozen else own_encoder.to(device)
    encoder_id = f"{base.revision}/{depth}/{device}" if frozen else f"{id(own_encoder)}/{device}"
    head = head.to(device).eval().requires_grad_(False)
    return Scorer(config["concept"], encoder, encoder_id, head, read_tokens(base), config["temperature"])


def _imported(files: Mapping[str, bytes], config: Mapping[str, Any], device: torch.device) -> Scorer:
    with tempfile.TemporaryDirectory(prefix="poolbench-scorer-") as scratch:
        for name, data in files.items():
            (Path(scratch) / Path(name).name).write_bytes(data)
        base = Base(config["base"], Path(scratch), config["base_revision"])
        model = load_classifier(base, complete=True)
        independent = config.get("independent", model.config.num_labels == 1)  # the first imports had no such note
        head = WholeClassifier(model, config["positive"], independent).to(device).requires_grad_(False)
        tokens = read_tokens(base)
    encoder_id = f"{base.revision}/ids/{id(head)}"
    return Scorer(config["concept"], TokenIds(), encoder_id, head.eval(), tokens, config["temperature"])


class Encoder(nn.Module):
    """Embeddings and the lowest layers of a BERT, always in evaluation mode and without gradients."""

    def __init__(self, bert: BertModel, depth: int):
        super().__init__()
        self.embeddings = bert.embeddings
        self.layers = nn.ModuleList(bert.encoder.layer[:depth])
        self.requires_grad_(False)
        self.eval()

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the states after the frozen layers, [B, T, D]."""
        hidden_BTD = self.embeddings(input_ids=ids_BT)
        bias_B11T = attention_bias(mask_BT, hidden_BTD)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, bias_B11T)
        return hidden_BTD


class Head(nn.Module):
    """Trained part of a scorer: the upper layers, the pooler and the classification head.

    The pooler reads only the first token. The topmost layer is therefore computed for that token alone, which gives
    equal logits at about a sixth of the cost.
    """

    def __init__(self, model: BertForSequenceClassification, depth: int):
        super().__init__()
        layers, pooler = model.bert.encoder.layer, model.bert.pooler
        assert depth < len(layers) and pooler is not None, "the head needs a layer and a pooler"
        self.layers = nn.ModuleList(layers[depth:-1])
        self.last = cast(BertLayer, layers[-1])
        self.pooler = pooler
        self.dropout = model.dropout
        self.classifier = model.classifier

    def forward(self, hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return logits, [B, L]."""
        bias_B11T = attention_bias(mask_BT, hidden_BTD)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, bias_B11T)
        first_B1D = first_token(self.last, hidden_BTD, bias_B11T)
        return self.classifier(self.dropout(self.pooler(first_B1D)))


def attention_bias(mask_BT: Tensor, like: Tensor) -> Tensor | None:
    """Return the additive attention bias that hides padding, or None if the batch has no padding."""
    if bool(mask_BT.all()):
        return None
    hidden = (~mask_BT.bool()).to(like.dtype) * -1e9
    return hidden[:, None, None, :]


def first_token(layer: BertLayer, hidden_BTD: Tensor, bias_B11T: Tensor | None) -> Tensor:
    """Return the output of a BERT layer at position 0, [B, 1, D]. Only the query of this position is computed."""
    attend = layer.attention.self
    heads = (attend.num_attention_heads, attend.attention_head_size)
    first_B1D = hidden_BTD[:, :1]
    query = attend.query(first_B1D).unflatten(-1, heads).transpose(1, 2)
    key = attend.key(hidden_BTD).unflatten(-1, heads).transpose(1, 2)
    value = attend.value(hidden_BTD).unflatten(-1, heads).transpose(1, 2)
    dropout = attend.dropout.p if layer.training else 0.0
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias_B11T, dropout_p=dropout)
    attended = layer.attention.output(mixed.transpose(1, 2).flatten(2), first_B1D)
    return layer.output(layer.intermediate(attended), attended)
