"""Texts to one vector each for interfaces that cannot answer a status: too long is cut, and what fails is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ConfigError, InputError
from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import Progress, extract_encoded
from poolbench_extractor.embedding.texts import text_id, words_of
from poolbench_extractor.embedding.truncate import truncated
from poolbench_extractor.encode import Encoded, encode
from poolbench_extractor.models.decoder import Decoder

#: Texts to annotation rows, as ``POST /pooler/annotate`` answers them.
Annotate = Callable[[list[str]], Sequence[Mapping[str, Any]]]


class TruncationWarning(UserWarning):
    """Texts were cut to the window of the model."""


@dataclass
class TextPooler:
    """A decoder, a layer and a strategy.

    Attributes:
        decoder: The model.
        pooling: The strategy; it needs no labels.
        layer: Block index, 0-based.
        include_bos: Whether a special token at position 0 counts as a real token.
        annotate: Annotates texts, where the strategy reads annotations.
        on_failure: Whether a text that cannot be computed raises, or is a row of NaN.
        max_length: Positions of a text, special tokens included; None where nothing bounds them.
        num_truncated: Texts that were cut so far.
    """

    decoder: Decoder
    pooling: Request
    layer: int
    include_bos: bool = False
    annotate: Annotate | None = None
    on_failure: Literal["raise", "nan"] = "raise"
    max_length: int | None = None
    num_truncated: int = 0

    def __post_init__(self) -> None:
        if self.pooling.strategy.reads_annotations and self.annotate is None:
            raise ConfigError(
                f"strategy {self.pooling.id} reads annotations: give `annotate`, a function from texts to the rows "
                "of `POST /pooler/annotate`"
            )
        if self.on_failure not in ("raise", "nan"):
            raise ConfigError(f"on_failure is {self.on_failure!r}; allowed: raise, nan")
        self.limit_to(self.max_length)

    def limit_to(self, length: int | None) -> None:
        """Cuts texts to ``length`` positions from now on; None stands for the window of the model.

        Raises:
            ConfigError: It leaves no room for a token, or is beyond the window.
        """
        window = self.decoder.window
        smallest = self.decoder.tokenizer.num_special_tokens_to_add() + 1
        if length is not None and (length < smallest or length > (window or length)):
            raise ConfigError(f"max_seq_length {length} is outside {smallest}..{window or ''} of this model")
        self.max_length = length or window

    def tokenize(self, texts: Sequence[str]) -> list[Encoded]:
        """The tokens of texts, cut to the window.

        Raises:
            InputError: A text is none, or no valid Unicode.
        """
        if not texts:
            return []
        for index, text in enumerate(texts):
            _require_text(index, text)
        ids = [text_id(text) for text in texts]
        encoded = encode(self.decoder, ids, texts, self._words(ids, texts), include_bos=self.include_bos)
        if self.max_length is None:
            return encoded
        cut = [truncated(passage, self.max_length) for passage in encoded]
        self._report(sum(new is not old for new, old in zip(cut, encoded, strict=True)), len(texts))
        return cut

    def pool(self, encoded: Sequence[Encoded], batch_size: int, progress: Progress | None = None) -> Tensor:
        """Vectors of tokens, float32 [N, D] on the host.

        Raises:
            InputError: A text cannot be computed, and ``on_failure`` is ``raise``.
        """
        if not encoded:
            return torch.zeros((0, self.decoder.width))
        limits, wanted = BatchLimits(max_passages=batch_size), {self.layer: [self.pooling]}
        with torch.inference_mode(False):  # sentence-transformers turns it on; gradients (S2) cannot be had inside
            (table,) = extract_encoded(self.decoder, encoded, wanted, limits=limits, progress=progress).values()
        reasons = [reason for reason in table["reason"].to_pylist() if reason is not None]
        if reasons and self.on_failure == "raise":
            raise InputError(
                f"{len(reasons)} of {len(encoded)} texts failed, the first one: {reasons[0]}; "
                'on_failure="nan" makes them rows of NaN'
            )
        return torch.tensor(vector_matrix(table["vector"]))  # a copy: Arrow's memory is read-only

    def _words(self, ids: Sequence[str], texts: Sequence[str]) -> dict[str, Any] | None:
        if self.annotate is None or not self.pooling.strategy.reads_annotations:
            return None
        rows = self.annotate(list(texts))
        if len(rows) != len(texts):
            raise InputError(f"annotate answered {len(rows)} rows for {len(texts)} texts")
        return dict(zip(ids, words_of(rows), strict=True))

    def _report(self, num_cut: int, num_texts: int) -> None:
        self.num_truncated += num_cut
        if num_cut:
            message = f"{num_cut} of {num_texts} texts were cut to {self.max_length} tokens"
            warnings.warn(message, TruncationWarning, stacklevel=5)


def _require_text(index: int, text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"sentence {index} is a {type(text).__name__}; it must be a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"sentence {index} is no valid Unicode: {error.reason} at character {error.start}") from None
