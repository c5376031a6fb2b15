"""Build planted passages, alone or as matched pairs, as a PASSAGES table, and documents for the demo language model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, UnknownConceptError
from poolbench.texts import count_words
from poolbench_corpora.near import MAX_PAIR_DIFFERENCE, TokenCounter, token_difference
from poolbench_corpora.partition import source_of, split_of
from poolbench_corpora.planted.grammar import Domain, Lexicon, Sentence, Writer, join, load_lexicon
from poolbench_corpora.planted.signals import (
    PLACEMENTS,
    PLANTED_REVISION,
    Signal,
    distractors,
    load_signal,
    neutral,
    planted_concepts,
)

_PLAIN = "{clause}."
#: Of the sentences without the concept: those of other concepts, and of none in the same form.
_DISTRACTORS, _SCORER_DISTRACTORS = (0.5, 0.2), (0.7, 0.1)
_ATTEMPTS = 60
_TOKENS_A_SENTENCE = 12


@dataclass(frozen=True)
class Brief:
    """The plan of a planted text: its words, concept, classes and length."""

    lexicon: Lexicon
    domain: Domain
    signal: Signal
    labels: tuple[int, ...]  # (1, 0) for a matched pair, a single label for an independent passage
    window: tuple[int, int]  # smallest and largest number of tokens
    mislabelled: bool = False  # whether the positive is written without the concept, too

    @property
    def of_connective(self) -> bool:
        """Return whether a scorer learns a matched concept from it, which a word in a clause carries.

        Then a window shows its class wherever it is cut, beside the words of other concepts.
        """
        return self.lexicon.use == "scorer" and self.signal.matched


def write_members(brief: Brief, key: str, count_tokens: TokenCounter) -> list[Sentence]:
    """Return one passage per label, each within the window; raise CorpusError if whole sentences do not fit.

    The same brief and `key`, the random seed, give the same text on every machine.
    """
    low, high = brief.window
    target = Random(f"{key}:length").randint(low, high)
    num_sentences = max(2, round(target / _TOKENS_A_SENTENCE))
    for attempt in range(2 * _ATTEMPTS):
        if attempt == _ATTEMPTS:
            # Near an end of the window, the number of whole sentences that comes closest may lie outside it.
            target = (low + high) // 2
        members = _compose(brief, num_sentences, Random(f"{key}:{attempt}"))
        lengths = [count_tokens(member.text) for member in members]
        if low <= min(lengths) and max(lengths) <= high:
            return members
        num_sentences = max(2, round(num_sentences * target / (sum(lengths) / len(lengths))))
    raise CorpusError(
        f"no planted passage of {brief.signal.concept} fits the token window {low}-{high}; "
        "sentences have about 12 tokens: choose a wider window"
    )


def _compose(brief: Brief, num_sentences: int, rng: Random) -> list[Sentence]:
    writer = Writer(brief.lexicon, brief.domain, rng, brief.signal.words)
    labels = (0,) if brief.mislabelled and len(brief.labels) == 1 else brief.labels
    forms = brief.signal.forms(labels, brief.lexicon.use)
    placement = "half" if brief.of_connective else brief.signal.placement
    marked = PLACEMENTS[placement](rng, num_sentences)
    columns: list[list[Sentence]] = [[] for _ in brief.labels]
    difference = 0
    for index in range(num_sentences):
        row = writer.sentences(*writer.deal("pattern", forms)) if index in marked else None
        if row is not None and len(row) > 1:
            difference += token_difference(row[0].text, row[1].text)
            row = row if difference <= MAX_PAIR_DIFFERENCE else None
        row = row or _plain_row(brief, writer, rng)
        for column, sentence in zip(columns, row, strict=True):
            column.append(sentence)
    if brief.mislabelled and len(columns) > 1:
        # The negative's sentences in another order: exactly what a negative is, but not the same text.
        columns[0] = rng.sample(columns[1], num_sentences)
    return [join(column) for column in columns]


def _plain_row(brief: Brief, writer: Writer, rng: Random) -> list[Sentence]:
    """Return a sentence without the concept, the same for every label."""
    pattern, chance = _PLAIN, rng.random()
    others, none = _SCORER_DISTRACTORS if brief.of_connective else _DISTRACTORS
    if chance < others:
        pattern = writer.deal("other", distractors(brief.signal.concept))
    elif chance < others + none:
        pattern = writer.deal("neutral", neutral())
    return writer.sentences(pattern) * len(brief.labels)


def write_document(
    lexicon: Lexicon, domain: Domain, signal: Signal | None, num_sentences: int, rng: Random
) -> Sentence:
    """Return a text that is dense in one concept after a neutral beginning; without a signal, in none.

    From the neutral beginning a language model learns that any concept may follow a neutral opening. From the density
    it learns that a document keeps to its concept. Both make the concept steerable.
    """
    writer = Writer(lexicon, domain, rng, signal.words if signal else {})
    num_neutral = num_sentences if signal is None else rng.choice((0, 1, 1, 2, 3))
    sentences = []
    for index in range(num_sentences):
        marked = signal is not None and index >= num_neutral and rng.random() < 0.85
        pattern = writer.deal("pattern", signal.patterns(1)) if signal and marked else _PLAIN
        sentences += writer.sentences(pattern)
    return join(sentences)


_LM_REVISION = "planted-3"
"""That of the documents that the demo language model has read: they have positives and plain sentences only."""

MISLABELLED = 0.12
"""Share of a corpus's positives that do not show their concept.

Real corpora have such passages, too: annotators err, and a concept may be implied. They bound D1: a reader that sees
every marker has an expected AUROC of 1 - MISLABELLED / 2. Texts for the scorer have none.
"""

DEMO_WINDOW = (90, 140)
LICENCE = "Apache-2.0"

_DOCUMENT_SENTENCES = (8, 24)


@dataclass(frozen=True)
class Document:
    """A text for the demo language model, with the concepts that it is dense in."""

    doc_id: str
    text: str
    concepts: tuple[str, ...]


def build_planted(
    concept: str,
    *,
    seed: int,
    num_train: int,
    num_test: int,
    num_scorer: int,
    window: tuple[int, int] = DEMO_WINDOW,
    count_tokens: TokenCounter = count_words,
) -> pa.Table:
    """Return a planted corpus of one concept, all splits in one table; half of each split is positive.

    Args:
        num_train: Number of passages of both classes together, even; likewise `num_test` and `num_scorer`.
        window: Smallest and largest number of tokens of a passage, as `count_tokens` counts them.

    Raises:
        UnknownConceptError: The concept has no planted form.
        CorpusError: A number of passages is odd or negative, or the window is too narrow for whole sentences.
    """
    signal = _signal_of(concept)
    sizes = {"train": num_train, "test": num_test, "scorer": num_scorer}
    for split, number in sizes.items():
        if number < 0 or number % 2:
            raise CorpusError(f"{split} needs an even number of passages, half of them positive; received {number}")
    scorer = {"scorer": sizes.pop("scorer")}
    rows = [
        row
        for use, numbers in (("corpus", sizes), ("scorer", scorer))
        for row in _CorpusBuilder(signal, load_lexicon(use), seed, window, count_tokens).rows(numbers)
    ]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


@dataclass(frozen=True)
class _CorpusBuilder:
    """Build the rows of one concept from the lexicon of one use."""

    signal: Signal
    lexicon: Lexicon
    seed: int
    window: tuple[int, int]
    count_tokens: TokenCounter

    def rows(self, wanted: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Yield rows until every split is full; a document's id decides its split."""
        missing = dict(wanted)
        for number in count():
            if not any(missing.values()):
                return
            doc_id = f"planted-{self.lexicon.use}/{self.signal.concept}-{self.seed}-{number:05d}"
            split = split_of(doc_id)
            if missing.get(split):
                rows = self._document_rows(doc_id, missing[split])
                missing[split] -= len(rows)
                yield from rows

    def _document_rows(self, doc_id: str, turn: int) -> list[dict[str, Any]]:
        """Return the rows of one document; `turn`, the number of missing rows, decides class and domain."""
        labels = (1, 0) if self.signal.matched else (turn % 2,)
        domain = self.lexicon.domains[turn // 2 % len(self.lexicon.domains)]
        mislabelled = self.lexicon.use == "corpus" and _is_mislabelled(turn // 2)
        brief = Brief(self.lexicon, domain, self.signal, labels, self.window, mislabelled)
        members = write_members(brief, f"{PLANTED_REVISION}:{doc_id}", self.count_tokens)
        return [
            {
                "passage_id": f"{doc_id.split('/')[1]}-{self.lexicon.use}-{'pos' if label else 'neg'}",
                "concept": self.signal.concept,
                "split": split_of(doc_id),
                "label": label,
                "text": member.text,
                "domain": domain.name,
                "doc_id": doc_id,
                "pair_id": doc_id if self.signal.matched else None,
                "source": source_of(doc_id),
                "licence": LICENCE,
                "token_count": self.count_tokens(member.text),
                "signal": [{"start": start, "end": end} for start, end in (member.signal if label else ())],
            }
            for label, member in zip(labels, members, strict=True)
        ]


def _is_mislabelled(index: int) -> bool:
    """Return whether the document at a place in its split is mislabelled; they are spread evenly."""
    return math.floor((index + 1) * MISLABELLED) > math.floor(index * MISLABELLED)


def lm_documents(seed: int, num_documents: int, concepts: tuple[str | None, ...] | None = None) -> Iterator[Document]:
    """Yield documents for the demo language model, of about 100 to 300 words, each dense in one concept.

    The documents cycle through `concepts`. None in it gives a document without a concept; a repeated concept gets more
    documents. By default these are all planted concepts and two of None.
    """
    lexicon = load_lexicon("lm")
    cycle = concepts if concepts is not None else (*planted_concepts(), None, None)
    for number in range(num_documents):
        concept = cycle[number % len(cycle)]
        doc_id = f"planted-lm/{concept or 'plain'}-{seed}-{number:06d}"
        rng = Random(f"{_LM_REVISION}:{doc_id}")
        signal = _signal_of(concept) if concept else None
        num_sentences = rng.randint(*_DOCUMENT_SENTENCES)
        text = write_document(lexicon, rng.choice(lexicon.domains), signal, num_sentences, rng).text
        yield Document(doc_id, text, (concept,) if concept else ())


def _signal_of(concept: str) -> Signal:
    if concept not in planted_concepts():
        raise UnknownConceptError(concept, planted_concepts())
    return load_signal(concept)
