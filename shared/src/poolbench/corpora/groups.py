"""Source documents inferred from shared 8-grams, for corpora that do not name them."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.corpora.text import shingles

INFERRED_SOURCE = "inferred"
"""Source of inferred document ids; no partition shares exist for it, so its splits are taken as given."""


def infer_documents(passages: pa.Table) -> pa.Table:
    """Fills missing `doc_id`s: passages that share an 8-gram, or a pair, are taken for one document.

    Args:
        passages: PASSAGES; rows with a `doc_id` are left as they are.
    """
    if passages["doc_id"].null_count == 0:
        return passages
    rows = passages.to_pylist()
    orphans = [index for index, row in enumerate(rows) if row["doc_id"] is None]
    parents = list(range(len(rows)))
    by_feature: dict[object, int] = {}
    for index in orphans:
        row = rows[index]
        features: set[object] = set(shingles(row["text"]))
        if row["pair_id"] is not None:
            features.add(("pair", row["concept"], row["pair_id"]))
        for feature in features:
            _join(parents, index, by_feature.setdefault(feature, index))
    members: dict[int, list[int]] = defaultdict(list)
    for index in orphans:
        members[_root(parents, index)].append(index)
    for indices in members.values():
        first = rows[indices[0]]
        for index in indices:
            rows[index]["doc_id"] = f"{INFERRED_SOURCE}/{first['concept']}-{first['passage_id']}"
    column = pa.array([row["doc_id"] for row in rows], pa.string())
    return passages.set_column(passages.schema.get_field_index("doc_id"), "doc_id", column)


def has_inferred_documents(passages: pa.Table) -> bool:
    """Whether any document id was inferred."""
    return bool(pc.any(pc.starts_with(passages["doc_id"], f"{INFERRED_SOURCE}/")).as_py())


def _root(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _join(parents: list[int], first: int, second: int) -> None:
    first, second = _root(parents, first), _root(parents, second)
    parents[max(first, second)] = min(first, second)
