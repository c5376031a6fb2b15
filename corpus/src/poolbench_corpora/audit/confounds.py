"""Separation of the classes by a surface feature, or by the words of a text, on the folds of metric D1."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from poolbench.concepts import Concept
from poolbench.errors import CellError
from poolbench.statistics.auroc import auroc_resamples
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench.word_rules import seed_pattern
from poolbench_corpora.audit.training import TEXT_FEATURES, Training, one_hot

#: Inverse regularisation of D1's probe, on standardised features.
DENSE_C = 1.0
#: Inverse regularisation on the words of a text, whose rows have the norm 1.
WORDS_C = 10.0


def surface_scores(features_nD: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the out-of-fold log-odds [n] by D1's probe: logistic regression on standardised features.

    Each fold is scored by a probe that is trained on the other folds.

    Raises:
        CellError: `not_converged` if a probe did not converge.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Not a Newton solver: where the classes have the same features, as pairs have the same domain, it finds no step and
    # reports that it did not converge. This one starts at the optimum there.
    probe = LogisticRegression(C=DENSE_C, solver="lbfgs", tol=1e-6, max_iter=1000)
    return _out_of_fold(make_pipeline(StandardScaler(), probe), features_nD, labels, folds)


def word_scores(texts: list[str], labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the out-of-fold log-odds [n] of each text by logistic regression on binary bags of words.

    The bags of words have norm 1. A word that the training folds lack has weight 0.

    Raises:
        CellError: `not_converged` if a probe did not converge, `too_few` if the texts have no words.
    """
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    try:
        counts = CountVectorizer(binary=True, token_pattern=r"\b\w+\b", dtype=np.float64).fit_transform(texts)
    except ValueError:  # an empty vocabulary
        raise CellError(Status.TOO_FEW, "the texts have no words") from None
    probe = LogisticRegression(C=WORDS_C, solver="lbfgs", max_iter=1000)
    return _out_of_fold(probe, csr_array(normalize(counts)), labels, folds)


def _out_of_fold(probe: Any, features: Any, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    scores = np.full(len(labels), np.nan)
    # The matrices are small: on a busy machine, threads of the linear algebra wait for one another.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("error", ConvergenceWarning)
        for fold in np.unique(folds):
            held = np.flatnonzero(folds == fold)
            fitted = np.flatnonzero(folds != fold)
            try:
                scores[held] = probe.fit(features[fitted], labels[fitted]).decision_function(features[held])
            except ConvergenceWarning:
                raise CellError(Status.NOT_CONVERGED, "a probe of the confound did not converge") from None
    return scores


#: Features that should not separate the classes. Words are not a confound: they are how most concepts are expressed.
CONFOUNDS = ("length", "domain", "punctuation", "casing", "readability")
WORDS = ("words", "words_without_seeds")


@dataclass(frozen=True)
class Figure:
    """AUROC of a surface feature or of the words.

    If the AUROC cannot be computed, it is None, and the status and the reason say why.
    """

    name: str
    kind: Literal["confound", "words"]  # `confound`, or `words` for the bags of words
    auroc: float | None  # out of fold, of pairs inside a fold, as in D1
    interval: tuple[float, float] | None
    status: Status
    reason: str | None
    scores: np.ndarray  # out-of-fold log-odds of the train passages [n]; empty where there are none


def figures(concept: Concept, training: Training, *, num_bootstrap: int, seed: int) -> list[Figure]:
    """Return the out-of-fold AUROC of each confound and each bag of words, with its bootstrap interval over groups."""
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
