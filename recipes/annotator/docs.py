"""Convert sentences to spaCy documents."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from recipes.annotator.conllu import Sentence, Word
from recipes.annotator.entities import UNKNOWN
from spacy.tokens import Doc, DocBin, Span
from spacy.vocab import Vocab

SENTENCES_PER_DOC = 10
"""Long enough to learn sentence boundaries, short enough for varied batches."""

ROOT = "ROOT"
"""spaCy's name of the root arc; the annotations call it by the UD name again."""


def chunks(sentences: Iterable[Sentence], size: int = SENTENCES_PER_DOC) -> Iterator[list[Sentence]]:
    """Yield up to `size` consecutive sentences of one document."""
    for _, group in groupby(sentences, key=lambda sentence: sentence.doc_id):
        document = list(group)
        for start in range(0, len(document), size):
            yield document[start : start + size]


def words_and_spaces(chunk: list[Sentence]) -> tuple[list[Word], list[bool]]:
    """Return the words of all sentences; sentences are separated by one space."""
    words = [word for sentence in chunk for word in sentence.words]
    spaces = [w.space_after or i + 1 == len(s.words) for s in chunk for i, w in enumerate(s.words)]
    return words, [*spaces[:-1], False]


def tree_doc(chunk: list[Sentence], vocab: Vocab) -> Doc:
    """Return a document with UPOS, lemmas and heads; sentence starts follow from the heads."""
    words, spaces = words_and_spaces(chunk)
    heads, offset = [], 0
    for sentence in chunk:
        heads += [offset + word.head for word in sentence.words]
        offset += len(sentence.words)
    return Doc(
        vocab,
        words=[word.form for word in words],
        spaces=spaces,
        pos=[word.upos if word.upos != "_" else "X" for word in words],
        lemmas=[word.lemma if word.lemma != "_" else word.form for word in words],
        heads=heads,
        deps=[ROOT if word.dep == "root" else word.dep for word in words],
    )


def entity_doc(chunk: list[Sentence], vocab: Vocab) -> Doc:
    """Return a document with entities; spans of unknown type are missing values, neither entity nor outside."""
    words, spaces = words_and_spaces(chunk)
    doc = Doc(vocab, words=[word.form for word in words], spaces=spaces)
    entities: list[Span] = []
    unknown: list[Span] = []
    offset = 0
    for sentence in chunk:
        for start, end, kind in sentence.entities:
            span = Span(doc, offset + start, offset + end, label="" if kind == UNKNOWN else kind)
            (unknown if kind == UNKNOWN else entities).append(span)
        offset += len(sentence.words)
    doc.set_ents(entities, missing=unknown, default="outside")
    return doc


def tree_docs(sentences: Iterable[Sentence], vocab: Vocab) -> list[Doc]:
    """Return documents for the tagger, lemmatizer and parser."""
    return [tree_doc(chunk, vocab) for chunk in chunks(sentences)]


def entity_docs(sentences: Iterable[Sentence], vocab: Vocab) -> list[Doc]:
    """Return documents for the entity recogniser."""
    return [entity_doc(chunk, vocab) for chunk in chunks(sentences)]


def save(docs: Iterable[Doc], path: str) -> None:
    """Write documents in the form that `spacy train` reads."""
    DocBin(docs=docs, store_user_data=False).to_disk(path)
