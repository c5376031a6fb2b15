"""Out-of-fold scores of L2-regularised logistic regressions on the features of texts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from poolbench.errors import CellError
from poolbench.statuses import Status

#: Inverse regularisation of D1's probe, on standardised features.
DENSE_C = 1.0
#: Inverse regularisation on the words of a text, whose rows have the norm 1.
WORDS_C = 10.0


def surface_scores(features_nD: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the log-odds [n] of each row by D1's kind of probe: logistic regression on standardised features.

    Each fold is scored by a probe of the other folds. Raise CellError `not_converged`.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Not a Newton solver: where the classes have the same features, as pairs have the same domain, it finds no step and
    # reports that it did not converge. This one starts at the optimum there.
    probe = LogisticRegression(C=DENSE_C, solver="lbfgs", tol=1e-6, max_iter=1000)
    return _out_of_fold(make_pipeline(StandardScaler(), probe), features_nD, labels, folds)


def word_scores(texts: list[str], labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return the log-odds [n] of each text by a logistic regression on which words it has, rows of norm 1.

    A word that the training folds lack has the weight 0. Raise CellError `not_converged`, or `too_few` if the texts
    have no words.
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
