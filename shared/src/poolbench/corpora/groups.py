"""Groups of passages: by pair and document, and by shared 8-grams if a corpus names no documents."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from poolbench.corpora.text import shingles

INFERRED_SOURCE = "inferred"
"""Source of inferred document ids; no partition shares exist for it, so its splits are taken as given."""


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
    """Fill missing `doc_id`s: passages that share an 8-gram, or a pair, count as one document."""
    if passages["doc_id"].null_count == 0:
        return passages
    rows = passages.to_pylist()
    orphans = [row for row in rows if row["doc_id"] is None]
    links = ((number, feature) for number, row in enumerate(orphans) for feature in _features(row))
    first_of: dict[int, dict[str, Any]] = {}
    for row, component in zip(orphans, _components(links, len(orphans)), strict=True):
        first = first_of.setdefault(component, row)
        row["doc_id"] = f"{INFERRED_SOURCE}/{first['concept']}-{first['passage_id']}"
    column = pa.array([row["doc_id"] for row in rows], pa.string())
    return passages.set_column(passages.schema.get_field_index("doc_id"), "doc_id", column)


def has_inferred_documents(passages: pa.Table) -> bool:
    """Return whether any document id was inferred."""
    return bool(pc.any(pc.starts_with(passages["doc_id"], f"{INFERRED_SOURCE}/")).as_py())


def _features(row: dict[str, Any]) -> set[object]:
    features: set[object] = set(shingles(row["text"]))
    if row["pair_id"] is not None:
        features.add(("pair", row["concept"], row["pair_id"]))
    return features
