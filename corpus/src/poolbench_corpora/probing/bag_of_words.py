"""Bags of words of probing sets: what the words alone say, without a model."""

from collections import Counter

import numpy as np

from poolbench_corpora.probing.data import ProbingData

_WORD = r"\w+|[^\w\s]"


def bags_of_words(data: ProbingData, num_words: int) -> np.ndarray:
    """Return TF-IDF of the words of each instance [n, D], float32, in the order of the instances.

    Words are in lower case; punctuation counts too. Of a span its own words are counted, of a pair each side apart, one
    after the other. Vocabulary and document frequencies come from the instances of train alone: the most frequent words
    there, by the number of texts or spans with them.

    Args:
        data: A set with instances of train.
        num_words: Most words of the vocabulary; D is their number, twice that for a pair.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    text_by_id = {
        row["passage_id"]: row["text"][row["span"]["start"] : row["span"]["end"]] for row in data.passages.to_pylist()
    }
    instances = data.instances.to_pylist()
    sides = [name for name in ("first", "second") if any(row[name] for row in instances)]
    texts = {side: [" ".join(text_by_id[part] for part in row[side]) for row in instances] for side in sides}
    train = [
        text for side in sides for row, text in zip(instances, texts[side], strict=True) if row["split"] == "train"
    ]
    words_of = TfidfVectorizer(token_pattern=_WORD).build_analyzer()
    count = Counter(word for text in train for word in set(words_of(text)))
    frequent = sorted(count, key=lambda word: (-count[word], word))[:num_words]
    vectorizer = TfidfVectorizer(token_pattern=_WORD, vocabulary=frequent).fit(train)
    return np.hstack([vectorizer.transform(texts[side]).toarray() for side in sides]).astype(np.float32)
