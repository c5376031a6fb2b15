"""What a run on a user's concept will be able to say: of D1, of confounds, and of D2 and D3."""

from collections.abc import Iterator
from math import sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import Concept
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statistics.folds import connected_groups
from poolbench.statuses import Status
from poolbench.steps.scorer import GateParams
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.confounds import word_scores
from poolbench_corpora.own.build import Made
from poolbench_corpora.own.review import MIN_SCORER, Remark

#: Standard errors that an effect must be away from 0 to be found in 80 % of cases by a two-sided test of 5 %.
_FOUND = 1.96 + 0.84
#: An AUROC whose interval is shown as an example.
_EXAMPLE = 0.8


def forecast(made: Made) -> list[Remark]:
    """Return remarks on each figure of a run, without a cluster, a language model or the scorer itself.

    Whether a scorer will pass is tried with a logistic regression on words in its place.
    """
    groups = connected_groups(made.passages["doc_id"].to_pylist(), made.passages["pair_id"].to_pylist())
    report = audit(made.concept, made.passages)
    remarks = [_power(made.passages, groups)]
    if report.reasons:
        message = f"D1: a run's verdict on the passages will be `{report.verdict}`: {'; '.join(report.reasons)}"
        remarks.append(Remark("warning", message))
    return [*remarks, *_gate(made.passages, groups), *_neighbours(made.concept)]


def auroc_error(auroc: float, num_positives: int, num_negatives: int) -> float:
    """Return the standard error of an AUROC over independent units of each class.

    Reference: Hanley & McNeil (1982), "The meaning and use of the area under a receiver operating characteristic (ROC)
    curve", equation 1, for exponential scores.
    """
    above, below = auroc / (2 - auroc), 2 * auroc**2 / (1 + auroc)
    spread = (num_positives - 1) * (above - auroc**2) + (num_negatives - 1) * (below - auroc**2)
    return sqrt((auroc * (1 - auroc) + spread) / (num_positives * num_negatives))


def _power(passages: pa.Table, groups: np.ndarray) -> Remark:
    labels, splits = np.array(passages["label"].to_pylist()), np.array(passages["split"].to_pylist())
    units = [len(set(groups[(splits == "train") & (labels == label)])) for label in (1, 0)]
    least = 0.5 + _FOUND * auroc_error(0.5, *units)
    around = 1.96 * auroc_error(_EXAMPLE, *units)
    interval = f"{_EXAMPLE - around:.2f} to {_EXAMPLE + around:.2f}"
    return Remark(
        "note",
        f"D1: with {units[0]} and {units[1]} documents or pairs for training, an AUROC of {least:.2f} or more can be "
        f"distinguished from chance, and the interval of {_EXAMPLE} is about {interval}",
    )


def _gate(passages: pa.Table, groups: np.ndarray) -> Iterator[Remark]:
    """Try part (a) of the gate: learn words from the scorer's texts, and separate the test texts."""
    used = pc.is_in(passages["split"], pa.array(["scorer", "test"]))
    table, groups = passages.filter(used), groups[used.to_numpy()]
    labels = np.array(table["label"].to_pylist(), dtype=np.int8)
    tested = np.array([split == "test" for split in table["split"].to_pylist()])
    learned, judged = (np.bincount(labels[side], minlength=2).min() for side in (~tested, tested))
    if learned < MIN_SCORER:
        return  # `review` has said so
    try:
        if judged < MIN_SCORER:
            raise CellError(Status.TOO_FEW, f"a class has {judged} test texts; {MIN_SCORER} are needed")
        scores = word_scores(table["text"].to_pylist(), labels, tested.astype(int))[tested]
    except CellError as error:
        yield Remark("warning", f"D2: no scorer could be tried: {error}")
        return
    groups = np.unique(groups[tested], return_inverse=True)[1]
    weights_Rn = group_weights(groups, 1000, 0)
    interval = percentile_interval(auroc_resamples(labels[tested], scores, weights_Rn, groups=groups))
    if interval is None:
        yield Remark("warning", "D2: no scorer could be tried: the test texts are of too few documents")
        return
    low, high = interval
    bound = GateParams().min_corpus_auroc
    finding = f"words alone, learned from the scorer's texts, separate the test texts (AUROC {low:.2f} to {high:.2f})"
    if low < bound:
        yield Remark(
            "warning",
            f"D2: {finding}; the gate asks a scorer for {bound} at the lower limit. If it fails, D2 and D3 are null",
        )
        return
    yield Remark(
        "note",
        f"D2: {finding}: the scorer should pass part (a) of its gate. Whether the model's own continuations keep the "
        "concept, part (b), is known only after a run",
    )


def _neighbours(concept: Concept) -> Iterator[Remark]:
    names = {
        "distant": concept.neighbours.linguistically_distant,
        "close": concept.neighbours.linguistically_close,
    }
    missing = [relation for relation, name in names.items() if name is None]
    if missing:
        yield Remark("note", f"D3: no {' and no '.join(missing)} neighbour is named, so that its figures are null")
