"""Probing sets as passages of a concept: whole texts with two labels, in a train and a test split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from poolbench.contracts.tables import PASSAGES, table_from_rows
from poolbench.errors import CorpusError
from poolbench.statistics.folds import connected_groups, drawn_splits
from poolbench_corpora.probing.data import ProbingData
from poolbench_corpora.probing.definition import ProbingSet


def as_passages(definition: ProbingSet, data: ProbingData, seed: int = 0) -> dict[str, pa.Table]:
    """Return the instances of a set as PASSAGES by split, `train` and `test`; dev is left out.

    The label that comes last in alphabetical order is the positive one. Splits are those of the set, or else the ones
    that a probing task of this seed draws. A group is a document, and a matched pair if all groups are.

    Raise CorpusError for a set of another input, without two labels, or without instances of a split.
    """
    instances = data.instances.to_pylist()
    labels = sorted({row["label"] or "" for row in instances})
    groups = [row["group"] for row in instances]
    splits: Sequence[str | None] = [row["split"] for row in instances]
    if not any(splits):
        splits = drawn_splits(connected_groups(groups), seed).tolist()
    if reason := _reason_against(definition, labels, groups, splits):
        raise CorpusError(f"probing set {definition.id}: {reason}")
    members: defaultdict[str, list[str]] = defaultdict(list)
    for row in instances:
        members[row["group"]].append(row["label"])
    paired = all(sorted(group_labels) == labels for group_labels in members.values())
    texts = {row["passage_id"]: row["text"] for row in data.passages.to_pylist()}
    rows = [
        {
            "passage_id": row["instance_id"],
            "concept": definition.id,
            "split": split,
            "label": labels.index(row["label"]),
            "text": texts[row["first"][0]],
            "domain": definition.id,
            "doc_id": row["group"],
            "pair_id": row["group"] if paired else None,
            "source": definition.source,
            "licence": definition.licence,
        }
        for row, split in zip(instances, splits, strict=True)
    ]
    return {
        name: table_from_rows([row for row in rows if row["split"] == name], PASSAGES) for name in ("train", "test")
    }


def _reason_against(
    definition: ProbingSet, labels: Sequence[str], groups: Sequence[str], splits: Sequence[str | None]
) -> str:
    """Return why a set does not consist of whole texts with two labels in two splits; empty if it does."""
    if definition.input != "text":
        return f"its input is {definition.input}, and whole texts are read"
    if definition.task == "values":
        return "it asks for values, and labels are read"
    if len(labels) != 2:
        examples = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
        return f"it has {len(labels)} labels ({examples}), and two are read"
    if None in splits or len(set(zip(groups, splits, strict=True))) > len(set(groups)):
        return "some of its instances have no split, or a group lies in several"
    return next((f"it has no {name} instances" for name in ("train", "test") if name not in splits), "")
