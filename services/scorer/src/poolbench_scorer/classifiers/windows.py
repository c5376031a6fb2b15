"""Windows of tokens, and their batches.

Training uses short windows, scoring uses even windows, and the validity gate uses windows of one length.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from poolbench.steps.scorer import WINDOW_TOKENS


@dataclass(frozen=True)
class BaseTokenizer:
    """Tokenizer of a base model. It gives the content tokens of texts, and the special tokens around a window."""

    tokenizer: PreTrainedTokenizerBase
    prefix: Window = field(init=False)
    suffix: Window = field(init=False)

    def __post_init__(self) -> None:
        (plain,), wrapped = self.content(["a"]), tuple(self.tokenizer("a")["input_ids"])
        start = next((at for at in range(len(wrapped)) if wrapped[at : at + len(plain)] == plain), 0)
        object.__setattr__(self, "prefix", wrapped[:start])
        object.__setattr__(self, "suffix", wrapped[start + len(plain) :])

    def content(self, texts: Sequence[str]) -> list[Window]:
        """Return the token ids of each text, without special tokens and without truncation."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
        return [tuple(ids) for ids in encoded["input_ids"]]

    def wrap(self, content: Window) -> Window:
        """Return a window with the special tokens that the encoder expects around it."""
        return self.prefix + content + self.suffix

    def text(self, content: Window) -> str:
        """Decode content tokens. The result can differ from the original text, for example in case."""
        return str(self.tokenizer.decode(list(content)))

    def cut(self, text: str, start: float, length: int) -> str:
        """Return the part of `text` that covers `length` tokens, at relative position `start` in [0, 1).

        A text of at most `length` tokens is returned whole.
        """
        encoded = self.tokenizer(
            text, add_special_tokens=False, truncation=False, verbose=False, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= length:
            return text
        first = place(start, len(offsets), length)
        return text[offsets[first][0] : offsets[first + length - 1][1]]


def scoring_windows(content: Window) -> list[Window]:
    """Cut a text into windows of nearly equal length, at most 128 tokens each.

    Even lengths avoid a short last window with too much weight. An empty text gives one empty window.
    """
    num_windows = max(1, math.ceil(len(content) / WINDOW_TOKENS))
    bounds = np.linspace(0, len(content), num_windows + 1).round().astype(int).tolist()
    return [content[start:end] for start, end in itertools.pairwise(bounds)]


def place(start: float, num_tokens: int, length: int) -> int:
    """Return the index of the first token of a window of `length` at relative position `start` in [0, 1)."""
    return int(start * (max(0, num_tokens - length) + 1))


def draw(seed: int, name: str) -> np.random.Generator:
    """Return a random generator for a seed and a name, independent of other draws."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def training_windows(
    content: Window, rng: np.random.Generator, num_windows: int, window_tokens: tuple[int, int]
) -> list[Window]:
    """Return one window of 128 tokens, then `num_windows` windows as long as generated texts.

    Lengths and relative positions depend only on `rng`. With equally seeded generators, the two passages of a matched
    pair are therefore cut at equal places and differ only in the concept.
    """
    lengths = [WINDOW_TOKENS, *rng.integers(window_tokens[0], window_tokens[1] + 1, size=num_windows).tolist()]
    starts = rng.random(num_windows + 1).tolist()
    firsts = [place(start, len(content), length) for start, length in zip(starts, lengths, strict=True)]
    return [content[first : first + length] for first, length in zip(firsts, lengths, strict=True)]


def shuffle_words(text: str, rng: np.random.Generator) -> str:
    """Return the words of `text` in random order."""
    words = text.split()
    return " ".join(words[index] for index in rng.permutation(len(words)))


def loop_words(text: str, rng: np.random.Generator, phrase_words: tuple[int, int] = (3, 8)) -> str:
    """Return a phrase of a few words of `text`, repeated to the length of `text` in words."""
    words = text.split()
    if not words:
        return text
    length = min(len(words), int(rng.integers(phrase_words[0], phrase_words[1] + 1)))
    first = int(rng.integers(0, len(words) - length + 1))
    phrase = words[first : first + length]
    return " ".join((phrase * math.ceil(len(words) / length))[: len(words)])


Window = tuple[int, ...]


def length_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group indices into batches of at most `max_tokens` tokens after padding, shortest first.

    The batches depend only on the lengths. An item longer than `max_tokens` is a batch of its own.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda position: (lengths[position], position)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pad_ids(windows: Sequence[Window], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] padded on the right with 0, and the mask of real positions [B, T]."""
    ids_BT = pad_sequence([torch.tensor(window, dtype=torch.long) for window in windows], batch_first=True)
    return ids_BT.to(device), _real_positions(windows).to(device)


def pad_states(states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad cached states [T_i, D] to one batch [B, T, D]. Return the batch and the mask of real positions [B, T]."""
    return pad_sequence(list(states), batch_first=True), _real_positions(states).to(states[0].device)


def _real_positions(rows: Sequence[Sized]) -> Tensor:
    lengths = torch.tensor([len(row) for row in rows])
    return torch.arange(int(lengths.max())) < lengths[:, None]
