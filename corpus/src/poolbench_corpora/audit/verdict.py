"""The verdict on a corpus: whether a high D1 could come from something else than the concept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from poolbench_corpora.audit.confounds import Figure
from poolbench_corpora.audit.training import FEW_GROUPS, LARGE_DOCUMENT, Training
from poolbench_corpora.near import NEAR_DUPLICATE

#: A confound is named if the lower limit of its AUROC is above this.
MAX_CONFOUND = 0.6


class Verdict(StrEnum):
    """What the audit says about a corpus."""

    PASS = "pass"
    CONFOUNDED = "confounded"  # something else separates the classes, or test passages are known from train
    SHORT = "short"  # too few independent passages to tell


@dataclass(frozen=True)
class Copies:
    """Test passages that are near-duplicates of train passages."""

    num_test: int
    num_copied: int


def verdict(training: Training, figures: Sequence[Figure], copies: Copies) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict with all reasons; there are none if it is `pass`."""
    confounded, short = (*confounds(figures, copies),), (*_short(training),)
    reasons = (*confounded, *short)
    if confounded:
        return Verdict.CONFOUNDED, reasons
    return (Verdict.SHORT if short else Verdict.PASS), reasons


def confounds(figures: Sequence[Figure], copies: Copies) -> Iterator[str]:
    """Yield what else than the concept separates the classes, or is known of the test passages from train."""
    for figure in figures:
        if figure.kind == "confound" and figure.interval is not None and figure.interval[0] > MAX_CONFOUND:
            low, high = figure.interval
            yield (
                f"{figure.name} alone separates the classes with an AUROC of {figure.auroc:.2f} "
                f"({low:.2f} to {high:.2f}), whose lower limit may be at most {MAX_CONFOUND:.2f}"
            )
    if copies.num_copied:
        yield (
            f"{copies.num_copied} of {copies.num_test} test passages share {NEAR_DUPLICATE:.0%} or more of their "
            "8-grams with a train passage"
        )


def _short(training: Training) -> Iterator[str]:
    if training.error is not None:
        yield f"D1 cannot be computed: {training.error}"
        return
    if training.fewest_groups < FEW_GROUPS:
        yield (
            f"a class has {training.fewest_groups} train documents or pairs; {FEW_GROUPS} are needed to exclude a "
            "confound"
        )
    if training.largest_group > LARGE_DOCUMENT:
        yield (
            f"one document, or chain of pairs, has {training.largest_group:.0%} of the train passages; at most "
            f"{LARGE_DOCUMENT:.0%} may be"
        )
