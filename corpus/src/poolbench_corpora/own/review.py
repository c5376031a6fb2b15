"""Say what a user's corpus is good for, before anything runs: which figures it allows, and what limits them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from poolbench.concepts import Concept
from poolbench.grouping import grouped
from poolbench.statistics.folds import MIN_GROUPS, connected_groups
from poolbench.word_rules import seed_pattern
from poolbench_corpora.audit.training import FEW_GROUPS, LARGE_DOCUMENT
from poolbench_corpora.near import MAX_PAIR_DIFFERENCE, has_inferred_documents, token_difference

#: Fewer passages of a class train no scorer, and without a scorer D2 and D3 are null.
MIN_SCORER = 10
#: A ratio of the classes above this is mentioned.
UNBALANCED = 1.5
#: A passage of fewer words has hardly any tokens to pool.
SHORT_WORDS = 8
#: A mean length of one class above this multiple of the other's is a cue that probes may use.
LENGTH_RATIO = 1.25

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Remark:
    """One thing that a user should know about a corpus. An `error` means that nothing can be measured."""

    level: Level
    message: str


def review(concept: Concept, passages: pa.Table) -> list[Remark]:
    """Return remarks on PASSAGES of one concept, errors first."""
    remarks = [
        *_sizes(passages),
        *_classes(passages),
        *_texts(concept, passages),
        *_pairs(passages),
        *_origin(passages),
    ]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(remarks, key=lambda remark: order[remark.level])


def _sizes(passages: pa.Table) -> Iterator[Remark]:
    labels, splits = np.array(passages["label"].to_pylist()), np.array(passages["split"].to_pylist())
    groups = connected_groups(passages["doc_id"].to_pylist(), passages["pair_id"].to_pylist())
    fewest = min(len(set(groups[(splits == "train") & (labels == label)])) for label in (0, 1))
    if fewest < MIN_GROUPS:
        yield Remark(
            "error",
            f"a class has {fewest} documents or pairs for training; D1 needs {MIN_GROUPS} of each class. Give at least "
            f"{4 * MIN_GROUPS} passages per class, from different documents (field `doc_id`)",
        )
    elif fewest < FEW_GROUPS:
        yield Remark(
            "warning",
            f"a class has {fewest} documents or pairs for training; intervals will be wide. {2 * FEW_GROUPS} passages "
            "per class from different documents narrow them",
        )
    scorer = min(int(((splits == "scorer") & (labels == label)).sum()) for label in (0, 1))
    if scorer < MIN_SCORER:
        yield Remark(
            "warning",
            f"{scorer} passages of a class are left for the scorer, which needs {MIN_SCORER}; D2 and D3 will be null. "
            f"Give at least {4 * MIN_SCORER} passages per class",
        )
    largest = np.bincount(groups[splits == "train"]).max() / max(1, (splits == "train").sum())
    if largest > LARGE_DOCUMENT and fewest >= MIN_GROUPS:
        yield Remark("warning", f"one document has {largest:.0%} of the training passages; more documents are better")


def _classes(passages: pa.Table) -> Iterator[Remark]:
    labels = np.array(passages["label"].to_pylist())
    counts = np.bincount(labels, minlength=2)
    if counts.max() > UNBALANCED * counts.min():
        yield Remark(
            "warning",
            f"{counts[1]} positives and {counts[0]} negatives: AUROC is not affected, but a run takes at most half of "
            "its budget from each class, and the scorer learns the larger class better",
        )
    lengths = np.array(passages["token_count"].to_pylist(), dtype=float)
    means = [lengths[labels == label].mean() for label in (0, 1)]
    if max(means) > LENGTH_RATIO * min(means):
        longer = "positives" if means[1] > means[0] else "negatives"
        yield Remark(
            "warning",
            f"{longer} are longer ({means[1]:.0f} words in the mean against {means[0]:.0f} of negatives): probes may "
            "find the length instead of the concept",
        )


def _texts(concept: Concept, passages: pa.Table) -> Iterator[Remark]:
    short = [row for row in passages.to_pylist() if row["token_count"] < SHORT_WORDS]
    if short:
        names = ", ".join(row["passage_id"] for row in short[:3])
        yield Remark("warning", f"{len(short)} passages have fewer than {SHORT_WORDS} words, such as {names}")
    if concept.seed_words:
        pattern = seed_pattern(concept)
        tainted = [row for row in passages.to_pylist() if row["label"] == 0 and pattern.search(row["text"])]
        if tainted:
            names = ", ".join(row["passage_id"] for row in tainted[:3])
            yield Remark("warning", f"{len(tainted)} negatives hold a seed word, such as {names}")


def _pairs(passages: pa.Table) -> Iterator[Remark]:
    pairs = grouped((row["pair_id"], row["text"]) for row in passages.to_pylist() if row["pair_id"] is not None)
    if not pairs:
        yield Remark(
            "note",
            "positives and negatives are not paired: what else differs between the two files (topic, author, length) "
            "counts as the concept",
        )
        return
    far = sum(token_difference(*texts) > MAX_PAIR_DIFFERENCE for texts in pairs.values())
    if far:
        yield Remark("warning", f"{far} pairs differ by more than {MAX_PAIR_DIFFERENCE} tokens")


def _origin(passages: pa.Table) -> Iterator[Remark]:
    if has_inferred_documents(passages):
        number = len(set(passages["doc_id"].to_pylist()))
        yield Remark("note", f"documents were inferred from shared 8-grams: {number} of {passages.num_rows} passages")
    if not all(passages["licence"].to_pylist()):
        yield Remark("note", "some passages name no licence (field `licence`, or --licence); exports need one")
