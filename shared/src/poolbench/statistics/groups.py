"""Groups of passages that depend on one another: those of one document, or of one matched pair."""

from collections.abc import Iterable, Sequence

import numpy as np


def connected_groups(*keys: Sequence[str | None]) -> np.ndarray:
    """Return the group number of each passage: connected components of the shared keys, int [n].

    Each sequence holds n keys of one kind, e.g. pair ids. A null key links nothing. Groups are numbered by first
    passage.
    """
    links = (
        (row, (kind, key)) for kind, column in enumerate(keys) for row, key in enumerate(column) if key is not None
    )
    return components(links, len(keys[0]))


def components(links: Iterable[tuple[int, object]], num_rows: int) -> np.ndarray:
    """Return the component of each row [n] of the graph that links rows to their features."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

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
