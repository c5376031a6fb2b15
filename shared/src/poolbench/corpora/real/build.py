"""Real corpora with weak labels as PASSAGES tables."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.contracts.tables import PASSAGES
from poolbench.corpora.checks.rules import seed_pattern
from poolbench.corpora.partition import Split, document_of, split_of
from poolbench.corpora.real.documents import Document, read_documents
from poolbench.corpora.real.rewriting import REWRITERS_REVISION, REWRITES
from poolbench.corpora.real.weak_labels import Pool, WeakLabels, weak_labels
from poolbench.corpora.real.windows import ChosenPassages, windows
from poolbench.corpora.text import MAX_PAIR_DIFFERENCE, TokenCounter, count_words, token_difference
from poolbench.errors import CorpusError

T = TypeVar("T")

REAL_REVISION = "real-2"
"""Changes whenever a reader, a rule or the selection changes; a rewriter has a revision of its own."""


def real_revision(concepts: Iterable[str]) -> str:
    """Return the revision of the real corpora of some concepts; new rewriters leave those without rewrites alone."""
    return f"{REAL_REVISION}, {REWRITERS_REVISION}" if not REWRITES.keys().isdisjoint(concepts) else REAL_REVISION


def real_concepts() -> tuple[str, ...]:
    """Return the concepts that can be built from the archives."""
    return tuple(sorted(weak_labels()))


def build_real(
    concept: str,
    *,
    archives: str | Path | None = None,
    num_train: int,
    num_test: int,
    num_scorer: int,
    window: tuple[int, int] | None = None,
    seed: int = 0,
    count_tokens: TokenCounter = count_words,
) -> pa.Table:
    """Build a corpus of one concept from real text; half of each split is positive.

    Args:
        archives: Folder of the archives; by default the environment variable `POOLBENCH_REAL_TEXT`.
        num_train: Passages of both classes together; likewise `num_test` and `num_scorer`. Even numbers.
        window: Smallest and largest number of tokens of a passage; the concept's own by default.
        seed: Other seeds choose other passages.
        count_tokens: Measures the window; words and punctuation by default.

    Raises:
        CorpusError: The archives cannot serve the concept; an odd number of passages, or more than they hold.
    """
    rules = weak_labels()
    if concept not in rules:
        raise CorpusError(f"the archives have no texts of {concept}; they serve {', '.join(sorted(rules))}")
    length = window or CONCEPTS.get(concept).token_window
    builder = _CorpusBuilder(concept, rules[concept], archives, length, seed, count_tokens)
    wanted: dict[Split, int] = {"train": num_train, "test": num_test, "scorer": num_scorer}
    for split, number in wanted.items():
        if number < 0 or number % 2:
            raise CorpusError(f"{split} needs an even number of passages, half of them positive; received {number}")
    rows = [row for split, number in wanted.items() for row in builder.rows(split, number // 2)]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


@dataclass(frozen=True)
class Candidate:
    """A passage that may enter the corpus, with its rewrite for a matched concept."""

    document: Document
    number: int
    text: str
    rewritten: str | None = None


@dataclass
class _CorpusBuilder:
    """Chooses the rows of one concept; near-duplicates are refused across all its splits."""

    concept: str
    labels: WeakLabels
    archives: str | Path | None
    window: tuple[int, int]
    seed: int
    count_tokens: TokenCounter
    chosen: ChosenPassages = field(default_factory=ChosenPassages)

    @cached_property
    def _seeds(self) -> Any:
        concept = CONCEPTS.get(self.concept)
        return seed_pattern(concept) if concept.seed_words else None

    def rows(self, split: Split, number: int) -> list[dict[str, Any]]:
        """Return the rows of one split, `number` of each class."""
        if not number:
            return []
        if self.labels.rewrite is not None:
            pairs = self._choose(self._by_domain(self.labels.positives, split), number, split, "pairs")
            return [row for pair in pairs for row in self._pair_rows(pair, split)]
        positives, negatives = self._classes(split, number)
        return [
            self._row(candidate, candidate.text, label, split, None)
            for label, chosen in ((1, positives), (0, negatives))
            for candidate in chosen
        ]

    def _classes(self, split: Split, number: int) -> tuple[list[Candidate], list[Candidate]]:
        """Return the chosen positives and negatives of an independent concept."""
        assert self.labels.negatives is not None
        sides = [self._by_domain(pool, split) for pool in (self.labels.positives, self.labels.negatives)]
        if not self.labels.same_domains:
            chosen = [
                self._choose(side, number, split, name)
                for side, name in zip(sides, ("positives", "negatives"), strict=True)
            ]
            return chosen[0], chosen[1]
        shared = sides[0].keys() & sides[1].keys()
        couples = {
            domain: iter(zip(self._accepted(sides[0][domain]), self._accepted(sides[1][domain]), strict=False))
            for domain in sorted(shared)
        }
        chosen_couples = list(islice(_round_robin(couples), number))
        self._enough(len(chosen_couples), number, split, "positives with a negative of the same domain")
        return [positive for positive, _ in chosen_couples], [negative for _, negative in chosen_couples]

    def _choose(self, sides: dict[str, Iterator[Candidate]], number: int, split: Split, name: str) -> list[Candidate]:
        """Return the first `number` acceptable candidates, domains in turn."""
        chosen = list(islice(self._accepted(_round_robin(sides)), number))
        self._enough(len(chosen), number, split, name)
        return chosen

    def _enough(self, found: int, number: int, split: Split, name: str) -> None:
        if found < number:
            raise CorpusError(
                f"{self.concept}: the archives hold {found} {name} for {split}, {number} are asked for; "
                f"ask for at most {2 * found} passages or for a wider window than {self.window}"
            )

    def _accepted(self, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        """Keep candidates that share few 8-grams with all chosen before."""
        return (candidate for candidate in candidates if self.chosen.accepts(candidate.text))

    def _by_domain(self, pool: Pool, split: Split) -> dict[str, Iterator[Candidate]]:
        """Return the candidates of a pool per domain; documents in turn, so that none dominates."""
        documents: dict[str, list[Document]] = {}
        for source in pool.sources:
            for document in read_documents(source, self.archives):
                if split_of(document.doc_id) == split and pool.document(document):
                    documents.setdefault(document.domain, []).append(document)
        return {domain: self._turns(documents[domain], pool, split) for domain in sorted(documents)}

    def _turns(self, documents: list[Document], pool: Pool, split: Split) -> Iterator[Candidate]:
        rng = Random(f"{REAL_REVISION}:{self.concept}:{split}:{self.seed}")
        rng.shuffle(documents)
        return _round_robin({document.doc_id: self._candidates(document, pool) for document in documents})

    def _candidates(self, document: Document, pool: Pool) -> Iterator[Candidate]:
        rng = Random(f"{REAL_REVISION}:{document.doc_id}:{self.seed}")
        for number, text in enumerate(windows(document.text, self.window, self.count_tokens, rng)):
            if not pool.passage(text):
                continue
            if self.labels.rewrite is None:
                yield Candidate(document, number, text)
            elif (rewritten := self._rewritten(text)) is not None:
                yield Candidate(document, number, text, rewritten)

    def _rewritten(self, text: str) -> str | None:
        """Return the negative of a positive, or None if the rewriter declines or it breaks a construction rule."""
        assert self.labels.rewrite is not None
        negative = self.labels.rewrite(text)
        if negative is None:
            return None
        tainted = self.labels.positives.passage(negative) or (self._seeds and self._seeds.search(negative))
        fits = self.window[0] <= self.count_tokens(negative) <= self.window[1]
        close = 0 < token_difference(text, negative) <= MAX_PAIR_DIFFERENCE
        return negative if fits and close and not tainted else None

    def _pair_rows(self, pair: Candidate, split: Split) -> list[dict[str, Any]]:
        assert pair.rewritten is not None
        pair_id = f"{self.concept}-{_stem(pair)}"
        return [self._row(pair, text, label, split, pair_id) for label, text in ((1, pair.text), (0, pair.rewritten))]

    def _row(self, candidate: Candidate, text: str, label: int, split: Split, pair_id: str | None) -> dict[str, Any]:
        document = candidate.document
        return {
            "passage_id": f"{self.concept}-{_stem(candidate)}-{'pos' if label else 'neg'}",
            "concept": self.concept,
            "split": split,
            "label": label,
            "text": text,
            "domain": document.domain,
            "doc_id": document_of(document.doc_id),
            "pair_id": pair_id,
            "source": document.source,
            "licence": document.licence,
            "token_count": self.count_tokens(text),
            "signal": [],
        }


def _stem(candidate: Candidate) -> str:
    return f"{candidate.document.doc_id.replace('/', '.')}.{candidate.number:03d}"


def _round_robin(iterators: Mapping[str, Iterator[T]]) -> Iterator[T]:
    """Yield one item of each iterator in turn, exhausted ones left out."""
    alive = dict(iterators)
    while alive:
        for name in list(alive):
            item = next(alive[name], None)
            if item is None:
                del alive[name]
            else:
                yield item
