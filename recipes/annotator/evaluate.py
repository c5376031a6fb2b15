"""Held-out accuracy of the assembled pipeline, from raw text."""

from collections.abc import Sequence
from typing import Any

from recipes.annotator.docs import entity_docs, tree_docs
from recipes.annotator.sources import Parts
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

TREE_SCORES = {
    "token_f": "words",
    "pos_acc": "UPOS",
    "lemma_acc": "lemma",
    "dep_uas": "UAS",
    "dep_las": "LAS",
    "sents_f": "sentences F1",
}


def evaluate(nlp: Language, trees: Parts, entities: Parts) -> dict[str, dict[str, Any]]:
    """Return scores in [0, 1] by test set and measure, with the number of words.

    Words are found by the pipeline's own tokenizer. UPOS and lemma are accuracies over the words that align
    with a gold word; UAS and LAS count without punctuation, full labels with subtypes, unaligned words as
    missed; F1 over exact sentences and exact typed entity spans.
    """
    report: dict[str, dict[str, Any]] = {}
    for name, sentences in trees.test.items():
        docs = tree_docs(sentences, nlp.vocab)
        scores = _score(nlp, docs)
        report[name] = {label: round(scores[key], 4) for key, label in TREE_SCORES.items()} | _size(docs)
    for name, sentences in entities.test.items():
        docs = entity_docs(sentences, nlp.vocab)
        scores = _score(nlp, docs)
        report[f"{name}, entities"] = {
            "entity F1": round(scores["ents_f"], 4),
            "entity precision": round(scores["ents_p"], 4),
            "entity recall": round(scores["ents_r"], 4),
            **{kind: round(value["f"], 4) for kind, value in sorted(scores["ents_per_type"].items())},
            **_size(docs),
        }
    return report


def _score(nlp: Language, docs: Sequence[Doc]) -> dict[str, Any]:
    return nlp.evaluate([Example(nlp.make_doc(doc.text), doc) for doc in docs], batch_size=16)


def _size(docs: Sequence[Doc]) -> dict[str, int]:
    return {"num_words": sum(len(doc) for doc in docs)}
