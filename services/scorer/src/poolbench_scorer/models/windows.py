"""Cutting texts into windows of tokens: short ones to train on, even ones to score, one length to gate."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from poolbench.steps.scorer import WINDOW_TOKENS
from poolbench_scorer.models.batches import Window


@dataclass(frozen=True)
class Tokens:
    """A base's tokenizer: content tokens of texts, and the special tokens around a window."""

    tokenizer: PreTrainedTokenizerBase
    prefix: Window = field(init=False)
    suffix: Window = field(init=False)

    def __post_init__(self) -> None:
        (plain,), wrapped = self.content(["a"]), tuple(self.tokenizer("a")["input_ids"])
        start = next((at for at in range(len(wrapped)) if wrapped[at : at + len(plain)] == plain), 0)
        object.__setattr__(self, "prefix", wrapped[:start])
        object.__setattr__(self, "suffix", wrapped[start + len(plain) :])

    def content(self, texts: Sequence[str]) -> list[Window]:
        """Token ids of each text without special tokens, however long."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
        return [tuple(ids) for ids in encoded["input_ids"]]

    def wrap(self, content: Window) -> Window:
        """A window as the encoder reads it."""
        return self.prefix + content + self.suffix

    def cut(self, text: str, start: float, length: int) -> str:
        """The stretch of ``text`` that covers ``length`` tokens, at relative position ``start`` in [0, 1)."""
        encoded = self.tokenizer(
            text, add_special_tokens=False, truncation=False, verbose=False, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= length:
            return text
        first = place(start, len(offsets), length)
        return text[offsets[first][0] : offsets[first + length - 1][1]]


def scoring_windows(content: Window) -> list[Window]:
    """Consecutive windows of at most 128 tokens whose lengths differ by at most one.

    Even, so that a short rest does not weigh as much as 128 tokens. An empty text is one empty window.
    """
    num_windows = max(1, math.ceil(len(content) / WINDOW_TOKENS))
    bounds = np.linspace(0, len(content), num_windows + 1).round().astype(int).tolist()
    return [content[start:end] for start, end in itertools.pairwise(bounds)]


def place(start: float, num_tokens: int, length: int) -> int:
    """Index of the first token of a window of ``length`` at relative position ``start`` in [0, 1)."""
    return int(start * (max(0, num_tokens - length) + 1))


def draw(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each name, whatever else is drawn."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def training_windows(
    content: Window, rng: np.random.Generator, num_windows: int, window_tokens: tuple[int, int]
) -> list[Window]:
    """Windows of one passage: one of 128 tokens, then ``num_windows`` of generation-like length.

    Lengths and relative positions come from ``rng`` alone, so the two members of a matched pair, given the
    same generator, are cut at the same places and differ in the concept only.
    """
    lengths = [
        WINDOW_TOKENS,
        *rng.integers(window_tokens[0], window_tokens[1] + 1, size=num_windows).tolist(),
    ]
    starts = rng.random(num_windows + 1).tolist()
    firsts = [place(start, len(content), length) for start, length in zip(starts, lengths, strict=True)]
    return [content[first : first + length] for first, length in zip(firsts, lengths, strict=True)]


def shuffle_words(text: str, rng: np.random.Generator) -> str:
    """The words of ``text`` in random order."""
    words = text.split()
    return " ".join(words[index] for index in rng.permutation(len(words)))


def loop_words(text: str, rng: np.random.Generator, phrase_words: tuple[int, int] = (3, 8)) -> str:
    """A phrase of ``text`` of a few words, repeated to the length of ``text`` in words."""
    words = text.split()
    if not words:
        return text
    length = min(len(words), int(rng.integers(phrase_words[0], phrase_words[1] + 1)))
    first = int(rng.integers(0, len(words) - length + 1))
    phrase = words[first : first + length]
    return " ".join((phrase * math.ceil(len(words) / length))[: len(words)])
