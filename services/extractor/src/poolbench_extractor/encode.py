"""Tokenisation of passages. A passage that cannot be run carries the reason."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import TOKEN_COUNTS
from poolbench.errors import CellError, InputError
from poolbench.pooling.context import TokenContext, Words, tokens_of_words
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.statuses import Status
from poolbench.steps.base import bos_to_add
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.erasing import Erased
from poolbench_extractor.models.decoder import Decoder


@dataclass(frozen=True)
class Encoded:
    """A tokenised passage.

    Attributes:
        error: Why the model cannot run the passage, or None.
        stretched: Whether the passage exceeds the length at which the model switches its rotary frequencies. The
            switch holds for a whole batch, so such passages never share a batch with shorter passages.
    """

    index: int
    context: TokenContext
    error: CellError | None = None
    stretched: bool = False

    @property
    def token_ids(self) -> np.ndarray:
        """Return the vocabulary ids, special tokens included."""
        assert self.context.token_ids is not None
        return self.context.token_ids

    @property
    def num_positions(self) -> int:
        """Return the length of the sequence, special tokens included."""
        return self.context.num_positions


@dataclass(frozen=True)
class PassageTexts:
    """Texts with their ids and, for strategies that need them, annotations and token frequencies."""

    ids: Sequence[str]
    texts: Sequence[str]
    words: Mapping[str, Words] = field(default_factory=dict)
    frequencies: "Frequencies | None" = None
    spans: Sequence[tuple[int, int]] = ()  # by text, the characters that count, as start and end; empty where all do
    bare: Sequence[bool] = ()  # by text, whether it is read without special tokens; empty where all are read with them


@dataclass(frozen=True)
class Reading:
    """Settings for reading passages: tokens, batches, attention sinks, and directions erased at a layer."""

    include_bos: bool = False
    add_bos: bool = False
    max_length: int | None = None
    limits: BatchLimits = field(default_factory=BatchLimits)
    sinks: SinkRule = LEAVE_OUT
    erased: Erased | None = None


DEFAULT_READING = Reading()


def encode(decoder: Decoder, passages: PassageTexts, reading: Reading = DEFAULT_READING) -> list[Encoded]:
    """Tokenise passages without truncation. If a passage cannot be run, its `error` holds the reason."""
    limit = min((bound for bound in (decoder.window, reading.max_length) if bound is not None), default=None)
    encoded = []
    contexts = tokenise(decoder.tokenizer, passages, include_bos=reading.include_bos, add_bos=reading.add_bos)
    for index, context in enumerate(contexts):
        stretched = decoder.rotary_switch is not None and context.num_positions > decoder.rotary_switch
        encoded.append(Encoded(index, context, _unusable(context, limit, decoder.vocabulary), stretched))
    return encoded


def tokenise(
    tokenizer: Any, passages: PassageTexts, *, include_bos: bool = False, add_bos: bool = False
) -> Iterator[TokenContext]:
    """Yield the tokens of all passages, including passages that the model cannot run.

    Raises:
        ConfigError: `add_bos` is true, and the tokenizer defines no BOS.
    """
    bos = bos_to_add(tokenizer) if add_bos else None
    batch = tokenizer(
        list(passages.texts),
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        truncation=False,
        split_special_tokens=True,  # "</s>" written in a passage is text, not a control token
        verbose=False,
    )
    for index, passage_id in enumerate(passages.ids):
        special = np.asarray(batch["special_tokens_mask"][index], dtype=bool)
        offsets = np.asarray(batch["offset_mapping"][index], dtype=np.int64).reshape(-1, 2)
        token_ids = np.asarray(batch["input_ids"][index], dtype=np.int64)
        bare = bool(passages.bare) and passages.bare[index]
        if bare:
            special, offsets, token_ids = (array[~special] for array in (special, offsets, token_ids))
        elif bos is not None and not (len(token_ids) and special[0] and token_ids[0] == bos):
            special, token_ids = np.insert(special, 0, True), np.insert(token_ids, 0, bos)
            offsets = np.insert(offsets, 0, 0, axis=0)
        if include_bos:
            special[:1] = False
        text = None
        if passages.spans:
            start, end = passages.spans[index]
            inside = tokens_of_words(offsets, np.array([start]), np.array([end]), [start < end])
            text, special = ~special, special | ~inside
        context = TokenContext(
            passage_id=passage_id,
            offsets=offsets,
            special=special,
            token_ids=token_ids,
            words=passages.words.get(passage_id),
            text=text,
        )
        yield context if passages.frequencies is None else passages.frequencies.added_to(context)


def _unusable(context: TokenContext, limit: int | None, vocabulary: int) -> CellError | None:
    num, name = context.num_positions, repr(context.passage_id)
    if len(context.real) == 0:
        return CellError(Status.FAILED, f"passage {name} has no real token, or none in its span")
    if limit is not None and num > limit:
        return CellError(Status.FAILED, f"passage {name} has {num} tokens; the window is {limit}")
    highest = int(np.max(context.token_ids)) if context.token_ids is not None else 0
    if highest >= vocabulary:
        reason = f"passage {name} has token id {highest}; the model knows ids below {vocabulary}"
        return CellError(Status.FAILED, reason)
    return None


@dataclass(frozen=True)
class Frequencies:
    """Relative frequencies by token id, in float64. Ids beyond the end of the array have frequency 0."""

    of_id: np.ndarray

    @classmethod
    def from_table(cls, counts: pa.Table) -> Self:
        """Compute frequencies from TOKEN_COUNTS. Raise InputError if the table is empty."""
        if counts.num_rows == 0:
            raise InputError("the train passages hold no token to count")
        ids, numbers = (counts[name].to_numpy() for name in TOKEN_COUNTS.names)
        of_id = np.bincount(ids, weights=numbers)
        return cls(of_id / of_id.sum())

    def added_to(self, context: TokenContext) -> TokenContext:
        """Return the passage with the signal `frequency` [T]. A token that is not in the counts has frequency 0."""
        assert context.token_ids is not None
        in_table_T = context.token_ids < len(self.of_id)
        frequency_T = np.where(in_table_T, self.of_id[np.where(in_table_T, context.token_ids, 0)], 0.0)
        return context.at_layer({"frequency": frequency_T})


def count_tokens(passages: Iterable[TokenContext]) -> pa.Table:
    """Return TOKEN_COUNTS of the real tokens of passages, by ascending id."""
    id_arrays = [context.token_ids[context.real] for context in passages if context.token_ids is not None]
    ids, counts = np.unique(np.concatenate([np.empty(0, np.int64), *id_arrays]), return_counts=True)
    return pa.table([pa.array(ids), pa.array(counts)], schema=TOKEN_COUNTS)
