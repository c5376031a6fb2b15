"""Bags of words of probing sets: what the words alone say, without a model."""

import numpy as np

from poolbench_corpora.probing.data import ProbingData

#: Singular values that are 0 but for rounding, relative to the largest.
_NULL = 1e-6
_WORD = r"\w+|[^\w\s]"


def bags_of_words(data: ProbingData, num_dimensions: int) -> np.ndarray:
    """Return a bag of words of each instance [n, D], float32, in the order of the instances.

    It is TF-IDF of the words in lower case and of punctuation, with rows of length 1, projected on its first singular
    vectors (latent semantic analysis). Without the projection, columns of rare words are nearly empty, and probes do
    not converge. Of a span its own words are counted, of a pair each side apart, one after the other. Words, document
    frequencies and singular vectors come from the instances of train alone.

    Args:
        data: A set with instances of train.
        num_dimensions: Most singular vectors; with as few words, each word is a dimension. A pair has twice as many.

    Reference: Deerwester et al. (1990), Indexing by latent semantic analysis.
    """
    from scipy.sparse import vstack
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    text_by_id = {
        row["passage_id"]: row["text"][row["span"]["start"] : row["span"]["end"]] for row in data.passages.to_pylist()
    }
    instances = data.instances.to_pylist()
    sides = [name for name in ("first", "second") if any(row[name] for row in instances)]
    texts = {side: [" ".join(text_by_id[part] for part in row[side]) for row in instances] for side in sides}
    is_train = np.array([row["split"] == "train" for row in instances])
    vectorizer = TfidfVectorizer(token_pattern=_WORD)
    vectorizer.fit(text for side in sides for text in np.array(texts[side], dtype=object)[is_train])
    counts = [vectorizer.transform(texts[side]) for side in sides]
    if len(vectorizer.vocabulary_) <= num_dimensions:
        return np.hstack([side_nV.toarray() for side_nV in counts]).astype(np.float32)
    train_nV = vstack([side_nV[is_train] for side_nV in counts])
    svd = TruncatedSVD(min(num_dimensions, train_nV.shape[0]), random_state=0).fit(train_nV)
    # Probes standardise what train has: a dimension that train lacks would be rounding in train, and huge in test.
    projection_DV = svd.components_[svd.singular_values_ > _NULL * svd.singular_values_[0]]
    return np.hstack([side_nV @ projection_DV.T for side_nV in counts]).astype(np.float32)
