"""Find texts that share many 8-grams, and infer the documents of passages without a document id."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.statistics.folds import components
from poolbench.texts import words_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TokenCounter = Callable[[str], int]

SHINGLE = 8

MAX_PAIR_DIFFERENCE = 25
"""Tokens by which the members of a matched pair may differ."""


def token_difference(first: str, second: str) -> int:
    """Return the size of the larger multiset difference between the tokens of two texts.

    The size is a lower bound of the token edit distance. It is equal to the distance if a rewrite keeps the order of
    words.
    """
    a, b = Counter(words_of(first)), Counter(words_of(second))
    return max((a - b).total(), (b - a).total())


def shingles(text: str) -> frozenset[int]:
    """Return the hashes of all runs of `SHINGLE` words. A shorter text has no hashes."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(hash(tuple(words[i : i + SHINGLE])) for i in range(len(words) - SHINGLE + 1))


NEAR_DUPLICATE = 0.2
"""Two passages are near-duplicates when this share of the shorter one's 8-grams is in the other."""

#: An 8-gram of more texts than this links each only to the next one; linking all of them takes quadratic time.
FREQUENT = 20
#: Rows that are compared with all others at once; bounds the memory of the comparison.
_BLOCK = 4096
#: Parts that the 8-grams are sorted in; bounds the memory of sorting.
_PARTS = 16
_WORD = re.compile(r"\w+")
_ODD = np.uint64(0x9E3779B97F4A7C15)


def near_duplicates(texts: Sequence[str], share: float = NEAR_DUPLICATE) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of texts that share 8-grams, int [P, 2], and the shares, float [P].

    A share is the number of common 8-grams, divided by the number of 8-grams in the shorter text. Pairs are sorted,
    with first < second. An 8-gram in more than 20 texts links each of these texts only to the next text. Copies of a
    text share all their 8-grams, so each copy is still paired with the next copy.

    Args:
        share: Smallest share of the 8-grams of the shorter text, above 0.
    """
    grams, sizes = _shingles(texts)
    rows = np.repeat(np.arange(len(texts), dtype=np.int32), sizes)
    links, chains = _links(grams, rows, len(texts))
    blocks = [*_similar(links, chains, sizes, share)]
    if not blocks:
        return np.zeros((0, 2), dtype=int), np.zeros(0)
    first, second, shares = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    order = np.lexsort((second, first))
    return np.stack([first, second], axis=1)[order], shares[order]


def _shingles(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of the distinct 8-grams of each text in order, and their number per text."""
    number_of: dict[str, int] = {}
    hashes, sizes = [], np.zeros(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        words = [number_of.setdefault(word, len(number_of) + 1) for word in _WORD.findall(text.lower())]
        num_grams = len(words) - SHINGLE + 1
        if num_grams > 0:
            mixed = _mixed(np.array(words, dtype=np.uint64))
            grams = np.zeros(num_grams, dtype=np.uint64)
            for offset in range(SHINGLE):
                grams = grams * _ODD + mixed[offset : offset + num_grams]
            row_hashes = np.unique(_mixed(grams))
            sizes[row] = len(row_hashes)
            hashes.append(row_hashes)
    return np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64), sizes


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return a bijective mix of 64-bit values. Reference: Steele et al. (2014), "Fast splittable generators"."""
    mixed = (values + _ODD).astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _links(grams: np.ndarray, rows: np.ndarray, num_texts: int) -> tuple[csr_array, csr_array]:
    """Return two sparse matrices of common 8-grams.

    The first marks the rarer 8-grams of each text [n, g]. The second counts the frequent 8-grams that each text shares
    with the next text [n, n].
    """
    from scipy.sparse import coo_array, csr_array

    held_by, columns, ends = [], [], []
    num_columns = 0
    for part in range(_PARTS):  # equal 8-grams are in one part
        inside = np.flatnonzero(grams % np.uint64(_PARTS) == part)
        own_rows, own_columns, own_ends = _links_of_part(grams[inside], rows[inside])
        held_by.append(own_rows)
        columns.append(own_columns + num_columns)
        ends.append(own_ends)
        num_columns += int(own_columns.max(initial=-1)) + 1
    rare = np.concatenate(held_by), np.concatenate(columns)
    links = csr_array((np.ones(len(rare[0]), dtype=np.int32), rare), shape=(num_texts, max(1, num_columns)))
    first, second = np.concatenate(ends, axis=1)
    ones = np.ones(len(first), dtype=np.int32)
    return links, csr_array(coo_array((ones, (first, second)), shape=(num_texts, num_texts)))


def _links_of_part(grams: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the text and number of each rarer 8-gram, and the neighbours [2, e] that share a frequent 8-gram."""
    order = np.argsort(grams, kind="stable")  # stable: the texts of one 8-gram stay in their order
    grams, rows = grams[order], rows[order]
    starts = np.flatnonzero(np.r_[True, grams[1:] != grams[:-1]]) if len(grams) else np.zeros(0, dtype=int)
    holders = np.diff(np.r_[starts, len(grams)])
    held = np.repeat(holders, holders)
    rare = (held > 1) & (held <= FREQUENT)
    columns = np.unique(np.repeat(np.arange(len(starts)), holders)[rare], return_inverse=True)[1]
    follows = (held > FREQUENT)[1:] & (grams[1:] == grams[:-1])
    return rows[rare], columns, np.stack([rows[:-1][follows], rows[1:][follows]])


def _similar(
    links: csr_array, chains: csr_array, sizes: np.ndarray, share: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield first, second and share of the similar pairs, for each block of rows."""
    from scipy.sparse import coo_array, csr_array

    other = csr_array(links.T)
    for start in range(0, links.shape[0], _BLOCK):
        counts = coo_array(links[start : start + _BLOCK] @ other + chains[start : start + _BLOCK])
        first, second = counts.row + start, counts.col
        upper = first < second
        first, second = first[upper], second[upper]
        shares = counts.data[upper] / np.minimum(sizes[first], sizes[second])
        similar = shares >= share
        yield first[similar], second[similar], shares[similar]


INFERRED_SOURCE = "inferred"
"""Source of inferred document ids; no partition shares exist for it, so its splits are taken as given."""

INFERENCE_VERSION = 2
"""Version of the rule that infers documents; part of the keys of passages whose documents are inferred."""

#: Shares of the shorter passage's 8-grams that two passages of one document have in common, least strict first. Any
#: common 8-gram is enough (1e-12), unless a template or boilerplate would then make one document of much of the corpus.
_SHARES = (1e-12, 0.05, 0.1, 0.2, 0.4, 0.8)
#: A document of more passages than both of these was not found by its own words. Folds could not be made with it.
_LARGEST_SHARE, _LARGEST = 0.05, 10


def infer_documents(passages: pa.Table) -> pa.Table:
    """Fill missing `doc_id`s. Passages that share an 8-gram or a pair belong to one document.

    Passages that follow a template or contain equal boilerplate also share 8-grams. If a document would have more than
    5 % of the passages (and more than 10), passages must share a larger part of their 8-grams, up to 0.8. Passages that
    share at least 0.8 count as copies and form one document of any size.
    """
    if passages["doc_id"].null_count == 0:
        return passages
    rows = passages.to_pylist()
    orphans = [row for row in rows if row["doc_id"] is None]
    pairs = [None if row["pair_id"] is None else (row["concept"], row["pair_id"]) for row in orphans]
    first_of: dict[int, dict[str, Any]] = {}
    for row, component in zip(orphans, _documents([row["text"] for row in orphans], pairs), strict=True):
        first = first_of.setdefault(component, row)
        row["doc_id"] = f"{INFERRED_SOURCE}/{first['concept']}-{first['passage_id']}"
    column = pa.array([row["doc_id"] for row in rows], pa.string())
    return passages.set_column(passages.schema.get_field_index("doc_id"), "doc_id", column)


def _documents(texts: Sequence[str], pairs: Sequence[object]) -> np.ndarray:
    """Return the inferred document of each text, int [n]. The two texts of a pair are in one document."""
    links, shares = near_duplicates(texts, _SHARES[0])
    largest = max(_LARGEST, _LARGEST_SHARE * len(texts))
    for threshold in _SHARES:
        similar = links[shares >= threshold].tolist()
        features = ((row, ("texts", number)) for number, link in enumerate(similar) for row in link)
        own_pairs = ((row, ("pair", pair)) for row, pair in enumerate(pairs) if pair is not None)
        documents = components(chain(features, own_pairs), len(texts))
        if np.bincount(documents).max() <= largest:
            break
    return documents


def has_inferred_documents(passages: pa.Table) -> bool:
    """Return whether any document id was inferred."""
    return bool(pc.any(pc.starts_with(passages["doc_id"], f"{INFERRED_SOURCE}/")).as_py())
