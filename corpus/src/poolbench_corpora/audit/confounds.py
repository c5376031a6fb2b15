"""How well a surface feature, or the words of a text, separate the classes, on the folds of D1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from poolbench.concepts import Concept
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench_corpora.audit.probes import surface_scores, word_scores
from poolbench_corpora.audit.surface import TEXT_FEATURES, one_hot
from poolbench_corpora.audit.training import Training
from poolbench_corpora.checks.rules import seed_pattern

#: Features that should not separate the classes. Words are not a confound: they are how most concepts are expressed.
CONFOUNDS = ("length", "domain", "punctuation", "casing", "readability")
WORDS = ("words", "words_without_seeds")


@dataclass(frozen=True)
class Figure:
    """How well something other than vectors separates the classes; null with status and reason where it cannot."""

    name: str
    kind: Literal["confound", "words"]  # `confound`, or `words` for the bags of words
    auroc: float | None  # out of fold, of pairs inside a fold, as in D1
    interval: tuple[float, float] | None
    status: Status
    reason: str | None
    scores: np.ndarray  # out-of-fold log-odds of the train passages [n]; empty where there are none


def figures(concept: Concept, training: Training, *, num_bootstrap: int, seed: int) -> list[Figure]:
    """Return a figure for each confound and each bag of words."""
    weights_Rn = group_weights(training.groups, num_bootstrap, seed) if training.error is None else None
    return [_figure(name, training, weights_Rn, scores) for name, scores in _scorers(concept, training)]


def _figure(
    name: str, training: Training, weights_Rn: np.ndarray | None, scores_of: Callable[[], np.ndarray]
) -> Figure:
    kind: Literal["confound", "words"] = "confound" if name in CONFOUNDS else "words"
    try:
        if training.error is not None or weights_Rn is None:
            raise training.error or CellError(Status.TOO_FEW, "there are no resamples")
        scores = scores_of()
        weights_Rn = np.vstack([np.ones_like(weights_Rn[:1]), weights_Rn])
        aurocs = auroc_resamples(training.labels, scores, weights_Rn, training.folds, training.groups)
    except CellError as error:
        return Figure(name, kind, None, None, error.status, str(error), np.zeros(0))
    return Figure(name, kind, float(aurocs[0]), percentile_interval(aurocs[1:]), Status.OK, None, scores)


def _scorers(concept: Concept, training: Training) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yield each confound and bag of words, with a function that computes its scores or raises CellError."""
    labels, folds = training.labels, training.folds

    def of_feature(name: str) -> np.ndarray:
        return surface_scores(TEXT_FEATURES[name](training.texts), labels, folds)

    def of_domain() -> np.ndarray:
        if len(set(training.domains)) < 2:
            raise CellError(Status.NO_COVERAGE, "all passages are of one domain")
        return surface_scores(one_hot(training.domains), labels, folds)

    def of_words() -> np.ndarray:
        return word_scores(training.texts, labels, folds)

    def of_other_words() -> np.ndarray:
        if not concept.seed_words:
            raise CellError(Status.NO_COVERAGE, "the concept declares no seed words")
        pattern = seed_pattern(concept)
        return word_scores([pattern.sub(" ", text) for text in training.texts], labels, folds)

    for name in CONFOUNDS:
        yield name, of_domain if name == "domain" else partial(of_feature, name)
    yield from zip(WORDS, (of_words, of_other_words), strict=True)
