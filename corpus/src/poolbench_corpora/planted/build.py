"""Build planted passages as a PASSAGES table, and planted documents for the demo language model."""

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
from poolbench_corpora.partition import source_of, split_of
from poolbench_corpora.planted.lexicon import Lexicon, load_lexicon
from poolbench_corpora.planted.passages import Brief, write_document, write_members
from poolbench_corpora.planted.signals import PLANTED_REVISION, Signal, load_signal, planted_concepts
from poolbench_corpora.text import TokenCounter

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
