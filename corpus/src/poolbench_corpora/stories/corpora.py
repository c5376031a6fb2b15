"""Pairs of passages of a corpus, as stories: a concept is a subject, and its positive passages are the high side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poolbench.concepts import CONCEPTS, withheld
from poolbench_corpora.io import read_concept
from poolbench_corpora.stories.tags import tagged

#: What a scorer is trained on is not measured.
_SPLITS = ("train", "test")


def concepts_of(folder: Path) -> list[str]:
    """Return the concepts that a corpus folder has; none for another folder."""
    return [concept.id for concept in CONCEPTS.all() if (folder / concept.id / "train_pos.jsonl").is_file()]


def pairs_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a record per pair of passages, with tags around their signal; sensitive concepts are left out.

    Passages of one matched pair are a pair. Others are paired in their order, within a split and a domain.
    """
    for concept in concepts_of(folder):
        if withheld([concept]):
            continue
        sides = defaultdict[tuple[str, ...], tuple[list[Any], list[Any]]](lambda: ([], []))
        for row in read_concept(folder, concept).to_pylist():
            if row["split"] in _SPLITS:
                matched = (row["pair_id"],) if row["pair_id"] else (row["split"], row["domain"])
                sides[matched][1 - row["label"]].append(row)
        for high, low in (pair for both in sides.values() for pair in zip(*both, strict=False)):
            stories = {"story1": _with_tags(high), "story2": _with_tags(low)}
            yield f"{folder}, {concept}, {high['passage_id']}", {"subject": concept, **stories}


def _with_tags(passage: dict[str, Any]) -> str:
    return tagged(passage["text"], [(span["start"], span["end"]) for span in passage["signal"] or ()])
