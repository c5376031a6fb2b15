"""A text pooler as a module of sentence-transformers; the one file that imports that package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from poolbench.errors import ConfigError
from poolbench_extractor.embedding.textpooler import TextPooler

_NO_LIMIT = 1 << 30


class PooledDecoder(Module):
    """Tokenisation, forward pass and pooling in one module: the poolings need more than token embeddings.

    It is not saved: the weights are the model's own, and what differs is the strategy's id and parameters.
    """

    def __init__(self, pooler: TextPooler) -> None:
        super().__init__()
        self.model = pooler.decoder.model  # a submodule, so that `to` moves it and `device` finds it
        self.pooler = pooler

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.pooler.decoder.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """Positions of a text; longer ones are cut."""
        return self.pooler.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self.pooler.limit_to(length)

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.pooler.decoder.width

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Texts to the tokens that ``forward`` reads."""
        before = prompt or ""
        return {"passages": self.pooler.tokenize([before + text for text in inputs] if before else inputs)}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Tensor | Any]:
        """Adds ``sentence_embedding`` [B, D]; sentence-transformers chose the batch, so it is run as it is."""
        vectors_BD = self.pooler.pool(features["passages"], _NO_LIMIT)
        return {**features, "sentence_embedding": vectors_BD.to(self.pooler.decoder.device)}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Refuses: make the encoder again from its arguments instead.

        Raises:
            ConfigError: Always.
        """
        made_from = {"strategy": self.pooler.pooling.id, "layer": self.pooler.layer}
        raise ConfigError(
            f"a pooled decoder is not saved to {Path(output_path).parent}: make it again by PoolingEncoder(model, "
            f"...) with {json.dumps(made_from)}"
        )


def sentence_transformer(pooler: TextPooler, *, prompts: Mapping[str, str], **options: Any) -> SentenceTransformer:
    """A ``SentenceTransformer`` with the pooler as its only module."""
    modules: list[nn.Module] = [PooledDecoder(pooler)]
    return SentenceTransformer(modules=modules, device=str(pooler.decoder.device), prompts=dict(prompts), **options)
