"""Texts to token ids with contexts; what cannot be run becomes a failure of its own passage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.pooling.context import TokenContext, Words
from poolbench.statuses import Status
from poolbench_extractor.frequencies import Frequencies
from poolbench_extractor.models.decoder import Decoder


@dataclass(frozen=True)
class Encoded:
    """One passage, ready for the model, or the reason why it is not.

    Attributes:
        index: Its place among the passages.
        context: Its tokens.
        error: Why it cannot be run.
        stretched: Whether it is longer than the length at which the model switches its rotary frequencies. The
            switch holds for a whole batch, so such passages never share one with shorter ones.
    """

    index: int
    context: TokenContext
    error: CellError | None = None
    stretched: bool = False

    @property
    def token_ids(self) -> np.ndarray:
        """Vocabulary ids, special tokens included."""
        assert self.context.token_ids is not None
        return self.context.token_ids

    @property
    def num_positions(self) -> int:
        """Length of the sequence, special tokens included."""
        return self.context.num_positions


def encode(
    decoder: Decoder,
    passage_ids: Sequence[str],
    texts: Sequence[str],
    words: Mapping[str, Words] | None = None,
    *,
    include_bos: bool = False,
    max_length: int | None = None,
    frequencies: Frequencies | None = None,
) -> list[Encoded]:
    """Tokenises passages without truncating any.

    Args:
        decoder: Gives tokenizer and window.
        passage_ids: One a text.
        texts: The passages.
        words: Annotations by passage id.
        include_bos: Whether a special token at position 0 counts as real.
        max_length: An upper bound besides the model's window, in tokens.
        frequencies: How often tokens occur, where a strategy asks for it.
    """
    limit = min((bound for bound in (decoder.window, max_length) if bound is not None), default=None)
    encoded = []
    contexts = tokenise(decoder.tokenizer, passage_ids, texts, words, include_bos=include_bos)
    if frequencies is not None:
        contexts = map(frequencies.added_to, contexts)
    for index, context in enumerate(contexts):
        stretched = decoder.rotary_switch is not None and context.num_positions > decoder.rotary_switch
        encoded.append(Encoded(index, context, _unusable(context, limit, decoder.vocabulary), stretched))
    return encoded


def tokenise(
    tokenizer: Any,
    passage_ids: Sequence[str],
    texts: Sequence[str],
    words: Mapping[str, Words] | None = None,
    *,
    include_bos: bool = False,
) -> Iterator[TokenContext]:
    """The tokens of passages, whether a model can run them or not; arguments as of ``encode``."""
    batch = tokenizer(
        list(texts),
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        truncation=False,
        split_special_tokens=True,  # "</s>" written in a passage is text, not a control token
        verbose=False,
    )
    for index, passage_id in enumerate(passage_ids):
        special = np.asarray(batch["special_tokens_mask"][index], dtype=bool)
        if include_bos:
            special[:1] = False
        yield TokenContext(
            passage_id=passage_id,
            offsets=np.asarray(batch["offset_mapping"][index], dtype=np.int64).reshape(-1, 2),
            special=special,
            token_ids=np.asarray(batch["input_ids"][index], dtype=np.int64),
            words=(words or {}).get(passage_id),
        )


def _unusable(context: TokenContext, limit: int | None, vocabulary: int) -> CellError | None:
    num, name = context.num_positions, repr(context.passage_id)
    if len(context.real) == 0:
        return CellError(Status.FAILED, f"passage {name} has no real token", quoted=[name])
    if limit is not None and num > limit:
        return CellError(Status.FAILED, f"passage {name} has {num} tokens; the window is {limit}", quoted=[name])
    highest = int(np.max(context.token_ids)) if context.token_ids is not None else 0
    if highest >= vocabulary:
        reason = f"passage {name} has token id {highest}; the model knows ids below {vocabulary}"
        return CellError(Status.FAILED, reason, quoted=[name])
    return None
