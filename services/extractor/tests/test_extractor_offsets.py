"""One alignment rule for every kind of offsets: spaces inside or outside, characters split over tokens, no width."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from poolbench.pooling.context import first_tokens_of_words, tokens_of_words

TEXT = "Ana met 👩‍🔬 in Čačak  ;\n你好 naïve"
WORDS = ["Ana", "met", "👩‍🔬", "in", "Čačak", ";", "你好", "naïve"]
STARTS = np.array([TEXT.index(word) for word in WORDS])
ENDS = STARTS + np.array([len(word) for word in WORDS])


def byte_level(*, trim: bool, merges: int) -> Tokenizer:
    """Byte-level BPE as of GPT-2 and Llama 3; without merges every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


def metaspace() -> Tokenizer:
    """SentencePiece as of Llama 2, Mistral and Gemma: a mark for each space, bytes for unknown characters."""
    pieces = {"<unk>": 0, "▁": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    for letter in "Anametiv":
        pieces.setdefault(letter, len(pieces))
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.ByteFallback()
    return tokenizer


TOKENIZERS = {
    "bytes, trimmed": byte_level(trim=True, merges=0),
    "bytes, untrimmed": byte_level(trim=False, merges=0),
    "merged, trimmed": byte_level(trim=True, merges=25),
    "merged, untrimmed": byte_level(trim=False, merges=25),
    "whole words": byte_level(trim=False, merges=200),
    "metaspace": metaspace(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_token_lies_in_its_word(name: str) -> None:
    encoding = TOKENIZERS[name].encode(TEXT)
    offsets = np.array(encoding.offsets)
    owners = [tokens_of_words(offsets, STARTS, ENDS, np.arange(len(WORDS)) == word) for word in range(len(WORDS))]
    for (start, end), mine in zip(encoding.offsets, np.array(owners).T, strict=True):
        shown = TEXT[start:end].strip()
        assert mine.sum() == (1 if shown else 0), (TEXT[start:end], encoding.tokens)
        assert not shown or shown in WORDS[int(np.argmax(mine))]
    for word, mine in zip(WORDS, owners, strict=True):
        inside = offsets[mine]
        covered = {index for start, end in inside for index in range(start, end) if not TEXT[index].isspace()}
        assert "".join(TEXT[index] for index in sorted(covered)) == word


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_first_token_of_a_word_begins_it(name: str) -> None:
    encoding = TOKENIZERS[name].encode(TEXT)
    offsets = np.array(encoding.offsets)
    first = first_tokens_of_words(offsets, STARTS, ENDS)
    assert len(first) == len(WORDS)
    for position, start, end in zip(first, STARTS, ENDS, strict=True):
        assert offsets[position, 0] <= start < offsets[position, 1] <= end


def test_the_kinds_differ_as_meant() -> None:
    """Characters of several bytes share their range; trimming leaves ranges without width."""
    trimmed, untrimmed = (
        np.array(TOKENIZERS[f"bytes, {kind}"].encode(TEXT).offsets) for kind in ("trimmed", "untrimmed")
    )
    assert len(trimmed) == len(TEXT.encode()) > len(TEXT)
    assert (trimmed[:, 0] == trimmed[:, 1]).any() and not (untrimmed[:, 0] == untrimmed[:, 1]).any()
    assert (np.diff(untrimmed[:, 0]) == 0).sum() == len(TEXT.encode()) - len(TEXT)
    spaced = [TEXT[start:end] for start, end in TOKENIZERS["whole words"].encode(TEXT).offsets]
    assert " met" in spaced
