"""Every architecture by its real Transformers class, small and random. Passages are longer than the windows."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.zoo import Case, architectures, random_model, trained_like, variants
from tokenizers import processors

from poolbench_extractor.encode import Encoded, PassageTexts, encode
from poolbench_extractor.models.decoder import Decoder, wrap_decoder

ARCHITECTURES = architectures()
CASES = ARCHITECTURES | variants()
#: Architectures are also tested with weights as training leaves them.
BOTH = [(name, trained) for name in sorted(CASES) for trained in (False, True) if name in ARCHITECTURES or not trained]
LAYERS = (0, 1)
SINKS = ("The", "No", "Rain", "Ça", "One")  # with which passages begin


def make(
    case: Case, tokenizer: Any, dtype: str = "float32", attention: str | None = None, *, trained: bool = False
) -> Decoder:
    """The case's model with random weights; if `trained`, the BOS and the first tokens of passages are sinks."""
    model = random_model(case, attention)
    if trained:
        trained_like(model, sorted({token for word in SINKS for token in tokenizer(word)["input_ids"][:2]}))
    return wrap_decoder(model.to(getattr(torch, dtype)), tokenizer)


@pytest.fixture(scope="module")
def tokenizer(llama: Decoder) -> Any:
    return llama.tokenizer


@pytest.fixture(scope="module")
def without_bos(tokenizer: Any) -> Any:
    """The same tokenizer, adding nothing, as that of SmolLM2."""
    bare = copy.deepcopy(tokenizer)
    bare._tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return bare


@pytest.fixture(scope="module")
def decoder_of(tokenizer: Any) -> Callable[..., Decoder]:
    """Float32 decoders by name and kind of weights, each made once."""
    made: dict[tuple[str, bool], Decoder] = {}

    def get(name: str, trained: bool = False) -> Decoder:
        if (name, trained) not in made:
            made[name, trained] = make(CASES[name], tokenizer, trained=trained)
        return made[name, trained]

    return get


def encoded(decoder: Decoder, texts: Sequence[str]) -> list[Encoded]:
    return encode(decoder, PassageTexts(texts, texts))  # ids that stay with their texts: they seed A7


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative difference of a row: sinks would hide the differences of other tokens."""
    gaps, sizes = (np.linalg.norm(each, axis=-1) for each in (found - expected, expected))
    return float(np.max(gaps / sizes))
