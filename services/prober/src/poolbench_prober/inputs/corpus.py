"""The passages of one concept as D1 reads them, computed once for all strategies and layers."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import PASSAGES, require_columns
from poolbench.directions.pairs import matched_pairs
from poolbench.errors import InputError
from poolbench.statistics.folds import connected_groups

_WORD = re.compile(r"[^\W\d_]+")
_CONTROL_SHARE = (0.3, 0.7)
_CONTROL_GAP = 0.15


@dataclass(frozen=True)
class Passages:
    """One split of one concept."""

    ids: tuple[str, ...]  # passage ids [n]
    labels: np.ndarray  # 1 positive, 0 negative [n]
    groups: np.ndarray  # connected components of matched pair and source document [n]
    domains: np.ndarray
    pairs_P2: np.ndarray  # row numbers (positive, negative) of the complete matched pairs [P, 2]
    paired: bool  # whether the concept has matched pairs at all
    texts: tuple[str, ...]

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read the split in `table` (PASSAGES). Raise InputError for no, duplicate or missing ids, or bad labels."""
        require_columns(table, PASSAGES, "the passages")
        ids = tuple(table["passage_id"].to_pylist())
        if len(set(ids)) != len(ids) or not ids or None in ids:
            raise InputError(
                f"passage ids must be present and unique; got {len(ids)}, {len(set(ids))} of them different"
            )
        labels = binary_labels(table["label"].to_pylist())
        pair_ids = table["pair_id"].to_pylist()
        return cls(
            ids=ids,
            labels=labels,
            groups=connected_groups(pair_ids, table["doc_id"].to_pylist()),
            domains=np.array([domain or "" for domain in table["domain"].to_pylist()]),
            pairs_P2=matched_pairs(pair_ids, labels),
            paired=any(pair is not None for pair in pair_ids),
            texts=tuple(text or "" for text in table["text"].to_pylist()),
        )

    def take(self, rows: np.ndarray) -> Self:
        """Return the passages at `rows`. Pairs that lose a member are dropped."""
        if len(rows) == len(self.ids):
            return self
        position = np.full(len(self.ids), -1)
        position[rows] = np.arange(len(rows))
        pairs = position[self.pairs_P2]
        return type(self)(
            ids=tuple(self.ids[row] for row in rows),
            labels=self.labels[rows],
            groups=self.groups[rows],
            domains=self.domains[rows],
            pairs_P2=pairs[(pairs >= 0).all(axis=1)],
            paired=self.paired,
            texts=tuple(self.texts[row] for row in rows),
        )


def binary_labels(labels: Sequence[object]) -> np.ndarray:
    """Return the labels as integers. Raise InputError for a label that is not exactly 0 or 1."""
    other_labels = sorted({str(label) for label in labels if label not in (0, 1)})
    if other_labels:
        raise InputError(f"labels must be 0 or 1, got {', '.join(other_labels[:5])}")
    return np.array(labels, dtype=np.int8)


def control_labels(texts: tuple[str, ...], labels: np.ndarray, num_words: int, seed: int) -> dict[str, np.ndarray]:
    """Return control tasks: whether a passage contains a given word that is unrelated to the concept.

    A word is eligible if about half of the passages contain the word (the frequency of a class label), about equally
    often in both classes. Then the concept itself does not solve the task.

    Returns:
        Labels [n] by word, for at most `num_words` words.

    Reference: Hewitt & Liang (2019), "Designing and interpreting probes with control tasks".
    """
    if len(np.unique(labels)) < 2:
        return {}
    vocabularies = [set(_WORD.findall(text.lower())) for text in texts]
    counts = Counter(word for vocabulary in vocabularies for word in vocabulary)
    low, high = (share * len(texts) for share in _CONTROL_SHARE)
    tasks = {}
    for word in sorted(word for word, count in counts.items() if low <= count <= high):
        present = np.array([word in vocabulary for vocabulary in vocabularies], dtype=np.int8)
        if abs(present[labels == 1].mean() - present[labels == 0].mean()) <= _CONTROL_GAP:
            tasks[word] = present
    drawn = np.random.default_rng(seed).permutation(len(tasks))[:num_words]
    words = list(tasks)
    return {words[number]: tasks[words[number]] for number in sorted(drawn)}
