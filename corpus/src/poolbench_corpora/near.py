"""Find texts that share many 8-grams, in time and memory that grow with the number of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from poolbench_corpora.text import SHINGLE

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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
    """Return the pairs of texts that share 8-grams, int [P, 2], and which share of the shorter one's, [P].

    Pairs are sorted, first < second. An 8-gram of more than 20 texts counts for neighbours in their order only. Copies
    of one text share all their 8-grams, so each is still found with the next copy.

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
    """Return hashes of the different 8-grams of all texts, one text after the other, and their number per text."""
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
    """Return which texts hold which rarer 8-grams [n, g], and how many frequent ones neighbours share [n, n]."""
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
    """Return text and number of each rarer 8-gram, and the neighbours [2, e] that share a frequent one."""
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
