"""Texts that autoencoders are trained and judged on: of the demo model those of the archives and planted ones, of
others the passages of the corpus that ships.
"""

import random
from collections.abc import Iterator, Sequence

from recipes.passages.documents import SOURCES, read_documents
from recipes.real_corpus.texts import shipped_texts

from poolbench_corpora.partition import split_of
from poolbench_corpora.planted import lm_documents

_CAP_BYTES = 1_500_000
_PIECE_CHARACTERS = 1200
#: Pieces that no autoencoder is trained on.
NUM_HELD_OUT = 120
# A corpus of mixed licences.
_EXCLUDED = frozenset({"masc"})


def pieces_of(planted: float, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return pieces to train on, and held-out ones, in a seeded order; about a share `planted` of them is planted.

    Beside planted text, real text is of the `lm` share of the partition, which no corpus of passages is made from.
    """
    if not planted:
        pieces = shipped_texts("train", "test", "scorer", seed=seed)
        return pieces[NUM_HELD_OUT:], pieces[:NUM_HELD_OUT]
    real = [piece for text in _real_texts(seed) for piece in _cut(text)]
    random.Random(seed).shuffle(real)
    num_planted = round(len(real) * planted / (1 - planted))
    pieces = real + [document.text for document in lm_documents(seed, num_planted, (None,))]
    random.Random(seed + 1).shuffle(pieces)
    return pieces[NUM_HELD_OUT:], pieces[:NUM_HELD_OUT]


def _real_texts(seed: int) -> Iterator[str]:
    for source in SOURCES.values():
        if not source.permissive or source.name in _EXCLUDED:
            continue
        documents = [document for document in read_documents(source.name, None) if split_of(document.doc_id) == "lm"]
        random.Random(seed).shuffle(documents)
        left = _CAP_BYTES
        for document in documents:
            yield document.text[:left]
            left -= len(document.text)
            if left <= 0:
                break


def _cut(text: str) -> Sequence[str]:
    """Return pieces of about equal length, cut at spaces."""
    pieces, words, size = list[str](), list[str](), 0
    for word in text.split():
        words.append(word)
        size += len(word) + 1
        if size >= _PIECE_CHARACTERS:
            pieces.append(" ".join(words))
            words, size = [], 0
    return pieces
