"""Groups of passages: by pair and document, and by shared 8-grams if a corpus names no documents."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array, csr_array, triu
from scipy.sparse.csgraph import connected_components

from poolbench.corpora.text import shingles

INFERRED_SOURCE = "inferred"
"""Source of inferred document ids; no partition shares exist for it, so its splits are taken as given."""

INFERENCE_VERSION = 2
"""Version of the rule that infers documents; part of the keys of passages whose documents are inferred."""

#: Shares of the shorter passage's 8-grams that two passages of one document have in common, least strict first. Any
#: common 8-gram is enough, unless a template or boilerplate would then make one document of much of the corpus.
_SHARES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
#: A document of more passages than both of these was not found by its own words. Folds could not be made with it.
_LARGEST_SHARE, _LARGEST = 0.05, 10
#: An 8-gram of more passages than this links each only to the next one; linking all of them takes quadratic time.
_FREQUENT = 20


def connected_groups(*keys: Sequence[str | None]) -> np.ndarray:
    """Return the group number of each passage: connected components of the shared keys, int [n].

    Each sequence holds n keys of one kind, e.g. pair ids. A null key links nothing. Groups are numbered by first
    passage.
    """
    links = (
        (row, (kind, key)) for kind, column in enumerate(keys) for row, key in enumerate(column) if key is not None
    )
    return _components(links, len(keys[0]))


def _components(links: Iterable[tuple[int, object]], num_rows: int) -> np.ndarray:
    """Return the component of each row [n] of the graph that links rows to their features."""
    rows: list[int] = []
    nodes: list[int] = []
    node_of: dict[object, int] = {}
    for row, key in links:
        rows.append(row)
        nodes.append(num_rows + node_of.setdefault(key, len(node_of)))
    size = num_rows + len(node_of)
    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, nodes)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1][:num_rows]
    return np.unique(labels, return_inverse=True)[1]


def infer_documents(passages: pa.Table) -> pa.Table:
    """Fill missing `doc_id`s: passages that share an 8-gram, or a pair, count as one document.

    Passages that follow a template, or that carry the same boilerplate, share 8-grams too. If a document would have
    more than 5 % of the passages, a larger share of the 8-grams is demanded, up to .8; passages that share more than
    that are copies of one another, however many there are.
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
    """Return the inferred document of each text, int [n]; texts with the same pair that is not None share one."""
    grams = [shingles(text) for text in texts]
    counts = shared_shingles(grams)
    sizes = np.array([max(1, len(own)) for own in grams])
    share = counts.data / np.minimum(sizes[counts.row], sizes[counts.col])
    largest = max(_LARGEST, _LARGEST_SHARE * len(texts))
    for threshold in _SHARES:
        links = np.stack([counts.row, counts.col])[:, share >= threshold].T.tolist()
        features = ((row, ("texts", number)) for number, link in enumerate(links) for row in link)
        own_pairs = ((row, ("pair", pair)) for row, pair in enumerate(pairs) if pair is not None)
        found = _components(chain(features, own_pairs), len(texts))
        if np.bincount(found).max() <= largest:
            break
    return found


def shared_shingles(texts: Sequence[frozenset[int]]) -> coo_array:
    """Count the shingles that each two texts share, by their indices (first < second), int [n, n].

    A shingle of more than 20 texts counts for neighbours in the order of its texts only. Copies of one text hold the
    same shingles, so each still shares all of them with the next copy.
    """
    rows = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    grams = np.fromiter(chain.from_iterable(texts), np.int64, len(rows))
    _, columns, holders = np.unique(grams, return_inverse=True, return_counts=True)
    held = holders[columns]
    rare = (held > 1) & (held <= _FREQUENT)
    shape = (len(texts), max(1, len(holders)))
    matrix = csr_array((np.ones(rare.sum(), dtype=np.int32), (rows[rare], columns[rare])), shape=shape)
    frequent = np.flatnonzero(held > _FREQUENT)
    ordered = frequent[np.lexsort((rows[frequent], columns[frequent]))]
    same = columns[ordered[:-1]] == columns[ordered[1:]]
    ends = rows[ordered[:-1]][same], rows[ordered[1:]][same]
    neighbours = csr_array((np.ones(same.sum(), dtype=np.int32), ends), shape=(len(texts), len(texts)))
    return coo_array(triu(matrix @ matrix.T, k=1) + neighbours)


def has_inferred_documents(passages: pa.Table) -> bool:
    """Return whether any document id was inferred."""
    return bool(pc.any(pc.starts_with(passages["doc_id"], f"{INFERRED_SOURCE}/")).as_py())
