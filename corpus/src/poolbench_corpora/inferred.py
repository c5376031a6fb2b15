"""Documents of passages that name none: passages that share 8-grams are of one document."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.statistics.folds import components
from poolbench_corpora.near import near_duplicates

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
