"""Audit the corpus of one concept: its measures, and the verdict on what a high D1 could come from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import Concept
from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_corpora.audit.confounds import Figure, figures
from poolbench_corpora.audit.training import FEW_GROUPS, LARGE_DOCUMENT, Training
from poolbench_corpora.near import NEAR_DUPLICATE, near_duplicates

#: A confound is named if the lower limit of its AUROC is above this.
MAX_CONFOUND = 0.6


class Verdict(StrEnum):
    """Verdict of the audit on a corpus."""

    PASS = "pass"
    CONFOUNDED = "confounded"  # something else separates the classes, or test passages are known from train
    SHORT = "short"  # too few independent passages to tell


@dataclass(frozen=True)
class Copies:
    """Test passages that are near-duplicates of train passages."""

    num_test: int
    num_copied: int


def verdict(training: Training, figures: Sequence[Figure], copies: Copies) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict with all reasons. A verdict of `pass` has none."""
    confounded, short = (*confounds(figures, copies),), (*_short(training),)
    reasons = (*confounded, *short)
    if confounded:
        return Verdict.CONFOUNDED, reasons
    return (Verdict.SHORT if short else Verdict.PASS), reasons


def confounds(figures: Sequence[Figure], copies: Copies) -> Iterator[str]:
    """Yield a message for each confound that separates the classes, and for test passages with near-copies in train."""
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


@dataclass(frozen=True)
class Audit:
    """Audit of one concept's corpus: properties that a probe could read instead of the concept.

    The audit quotes and names no passage.
    """

    concept: str
    verdict: Verdict
    reasons: tuple[str, ...]
    figures: tuple[Figure, ...]
    copies: Copies
    training: Training

    @property
    def best(self) -> Figure | None:
        """Return the confound that separates the classes best, or None if no confound could be computed."""
        confounds = [figure for figure in self.figures if figure.kind == "confound" and figure.auroc is not None]
        return max(confounds, key=lambda figure: figure.auroc or 0.0, default=None)

    def rows(self) -> Iterator[Row]:
        """Yield one row per check, without the columns of a run."""
        common = {"concept": self.concept, "verdict": str(self.verdict), "verdict_reason": "; ".join(self.reasons)}
        for row in (*map(_row, self.figures), *self._counts()):
            yield {**common, **row}

    def to_dict(self) -> Row:
        """Return the audit as a dictionary for JSON."""
        checks = [
            {name: value for name, value in row.items() if name not in ("concept", "verdict", "verdict_reason")}
            for row in self.rows()
        ]
        return {"verdict": str(self.verdict), "reasons": list(self.reasons), "checks": checks}

    def _counts(self) -> Iterator[Row]:
        copies, training = self.copies, self.training
        ok = {"status": Status.OK.value, "reason": None, "ci_low": None, "ci_high": None}
        none = {"value": None, "status": Status.TOO_FEW.value, "ci_low": None, "ci_high": None}
        if copies.num_test:
            share = copies.num_copied / copies.num_test
            yield {"check": "near_duplicates", "kind": "split", "value": share, "limit": 0.0, **ok}
        else:
            yield {"check": "near_duplicates", "kind": "split", "limit": 0.0, **none, "reason": "no test passages"}
        groups = {"check": "fewest_groups", "kind": "groups", "limit": float(FEW_GROUPS)}
        yield {**groups, "value": float(training.fewest_groups), **ok}
        largest = {"check": "largest_group", "kind": "groups", "limit": LARGE_DOCUMENT}
        yield {**largest, "value": training.largest_group, **ok}


def audit(concept: Concept, passages: pa.Table, *, seed: int = 0, num_bootstrap: int = 1000) -> Audit:
    """Audit the PASSAGES of one concept.

    Args:
        seed: Seed of the folds and resamples. With the seed of a run, they equal those of the run's metric D1.
        num_bootstrap: Number of resamples of the groups for the intervals.
    """
    training = Training.of(passages, seed)
    all_figures = figures(concept, training, num_bootstrap=num_bootstrap, seed=seed)
    used = passages.filter(pc.is_in(passages["split"], pa.array(["train", "test"])))
    in_test = np.array([split == "test" for split in used["split"].to_pylist()], dtype=bool)
    pairs, _ = near_duplicates(used["text"].to_pylist())
    across = in_test[pairs[:, 0]] != in_test[pairs[:, 1]]
    copied = np.unique(pairs[across][in_test[pairs[across]]])
    copies = Copies(int(in_test.sum()), len(copied))
    decided, reasons = verdict(training, all_figures, copies)
    return Audit(concept.id, decided, reasons, tuple(all_figures), copies, training)


def _row(figure: Figure) -> Row:
    low, high = figure.interval or (None, None)
    return {
        "check": figure.name,
        "kind": figure.kind,
        "value": figure.auroc,
        "ci_low": low,
        "ci_high": high,
        "limit": MAX_CONFOUND if figure.kind == "confound" else None,
        "status": figure.status.value,
        "reason": figure.reason,
    }
