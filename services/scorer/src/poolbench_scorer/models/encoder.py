"""A BERT classifier in two parts: the encoder with the frozen layers, and the head that a concept trains.

Scorers on the same base share the encoder, so one pass of the lower layers serves all of them.
Shape suffixes: B sequences, T tokens, D hidden width, L labels.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import BertForSequenceClassification
from transformers.models.bert.modeling_bert import BertLayer, BertModel


class Encoder(nn.Module):
    """Embeddings and the lowest layers of a BERT, always in evaluation mode and without gradients."""

    def __init__(self, bert: BertModel, depth: int):
        super().__init__()
        self.embeddings = bert.embeddings
        self.layers = nn.ModuleList(bert.encoder.layer[:depth])
        self.requires_grad_(False)
        self.eval()

    def forward(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return states after the frozen layers, [B, T, D]."""
        hidden_BTD = self.embeddings(input_ids=ids_BT)
        bias_B11T = attention_bias(mask_BT, hidden_BTD)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, bias_B11T)
        return hidden_BTD


class Head(nn.Module):
    """The upper layers, the pooler and the classification head: what one concept trains.

    The pooler reads the first token only, so the topmost layer is computed for that token alone, which gives
    the same logits at about a sixth of the cost.
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
    """Return additive attention bias that hides padding; None when nothing is padded."""
    if bool(mask_BT.all()):
        return None
    hidden = (~mask_BT.bool()).to(like.dtype) * -1e9
    return hidden[:, None, None, :]


def first_token(layer: BertLayer, hidden_BTD: Tensor, bias_B11T: Tensor | None) -> Tensor:
    """Return the output of one BERT layer at position 0, [B, 1, D]: one query attends to all keys."""
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
