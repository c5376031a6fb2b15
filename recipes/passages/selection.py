"""Choose the rows of a corpus from documents: labels, windows, rewrites and near-duplicates.

The archives and the datasets of hubs share this: only where documents come from differs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from recipes.passages.documents import Document
from recipes.passages.weak_labels import Pool, WeakLabels
from recipes.passages.windows import ChosenPassages, windows
from recipes.passages.yields import Yield

from poolbench.concepts import CONCEPTS
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError
from poolbench.word_rules import seed_pattern
from poolbench_corpora.near import MAX_PAIR_DIFFERENCE, TokenCounter, token_difference
from poolbench_corpora.partition import Split, document_of

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A passage that may enter the corpus, with its rewrite for a matched concept."""

    document: Document
    number: int
    text: str
    rewritten: str | None = None


@dataclass
class Selection(ABC):
    """Chooses the rows of one concept; near-duplicates are refused across all its splits."""

    concept: str
    labels: WeakLabels
    window: tuple[int, int]
    seed: int
    count_tokens: TokenCounter
    tally: Yield
    accepted_passages: ChosenPassages = field(default_factory=ChosenPassages, init=False)

    #: Changes whenever the choice changes; part of every random key.
    revision: ClassVar[str]
    #: Where the documents come from, for messages.
    origin: ClassVar[str]

    @abstractmethod
    def by_domain(self, pool: Pool, split: Split) -> dict[str, Iterator[Candidate]]:
        """Return the candidates of a pool in one split, by domain."""

    def table(self, wanted: Mapping[Split, int]) -> pa.Table:
        """Return PASSAGES with so many of each split, half of them positive. Raise CorpusError if they are odd."""
        for split, number in wanted.items():
            if number < 0 or number % 2:
                raise CorpusError(f"{split} needs an even number of passages, half of them positive; received {number}")
        rows = [row for split, number in wanted.items() for row in self.rows(split, number // 2)]
        self.tally.chosen = len(rows)
        return pa.Table.from_pylist(rows, schema=PASSAGES)

    @cached_property
    def _seeds(self) -> Any:
        concept = CONCEPTS.get(self.concept)
        return seed_pattern(concept) if concept.seed_words else None

    def rows(self, split: Split, number: int) -> list[dict[str, Any]]:
        """Return the rows of one split, `number` of each class."""
        if not number:
            return []
        if self.labels.rewrite is not None:
            pairs = self._choose(self.by_domain(self.labels.positives, split), number, split, "pairs")
            return [row for pair in pairs for row in self._pair_rows(pair, split)]
        positives, negatives = self._classes(split, number)
        return [
            self._row(candidate, candidate.text, label, split, None)
            for label, candidates in ((1, positives), (0, negatives))
            for candidate in candidates
        ]

    def _classes(self, split: Split, number: int) -> tuple[list[Candidate], list[Candidate]]:
        """Return the chosen positives and negatives of an independent concept."""
        assert self.labels.negatives is not None
        sides = [self.by_domain(pool, split) for pool in (self.labels.positives, self.labels.negatives)]
        if not self.labels.same_domains:
            classes = [
                self._choose(side, number, split, name)
                for side, name in zip(sides, ("positives", "negatives"), strict=True)
            ]
            return classes[0], classes[1]
        shared = sides[0].keys() & sides[1].keys()
        couples = {
            domain: iter(zip(self._accepted(sides[0][domain]), self._accepted(sides[1][domain]), strict=False))
            for domain in sorted(shared)
        }
        chosen_couples = list(islice(round_robin(couples), number))
        self._enough(len(chosen_couples), number, split, "positives with a negative of the same domain")
        return [positive for positive, _ in chosen_couples], [negative for _, negative in chosen_couples]

    def _choose(self, sides: dict[str, Iterator[Candidate]], number: int, split: Split, name: str) -> list[Candidate]:
        """Return the first `number` acceptable candidates, domains in turn."""
        candidates = list(islice(self._accepted(round_robin(sides)), number))
        self._enough(len(candidates), number, split, name)
        return candidates

    def _enough(self, num_candidates: int, number: int, split: Split, name: str) -> None:
        if num_candidates < number:
            raise CorpusError(
                f"{self.concept}: {self.origin} hold {num_candidates} {name} for {split}, {number} are asked for; "
                f"ask for at most {2 * num_candidates} passages or for a wider window than {self.window}"
            )

    def _accepted(self, candidates: Iterator[Candidate]) -> Iterator[Candidate]:
        """Keep candidates that share few 8-grams with all chosen before."""
        for candidate in candidates:
            if self.accepted_passages.accepts(candidate.text):
                yield candidate
            else:
                self.tally.drop("near_duplicate", candidate.text)

    def passages(self, text: str, rng: Random) -> Iterator[str]:
        """Yield the passages that a text is cut into."""
        return windows(text, self.window, self.count_tokens, rng, lambda missed: self.tally.drop("window", missed))

    def candidates(self, document: Document, pool: Pool) -> Iterator[Candidate]:
        """Yield the passages of a document that obey the construction rules, with their rewrites."""
        rng = Random(f"{self.revision}:{document.doc_id}:{self.seed}")
        for number, text in enumerate(self.passages(document.text, rng)):
            if not pool.passage(text):
                self.tally.drop("filter", text)
            elif self.labels.rewrite is None:
                yield Candidate(document, number, text)
            elif (rewritten := self._rewritten(text)) is not None:
                yield Candidate(document, number, text, rewritten)

    def _rewritten(self, text: str) -> str | None:
        """Return the negative of a positive, or None if the rewriter declines or it breaks a construction rule."""
        assert self.labels.rewrite is not None
        negative = self.labels.rewrite(text)
        low, high = self.window
        if negative is None:
            self.tally.drop("declined", text)
        elif self.labels.positives.passage(negative) or (self._seeds and self._seeds.search(negative)):
            self.tally.drop("contamination", negative)
        elif not low <= self.count_tokens(negative) <= high:
            self.tally.drop("rewrite_window", negative)
        elif not 0 < token_difference(text, negative) <= MAX_PAIR_DIFFERENCE:
            self.tally.drop("pair_difference", text)
        else:
            return negative
        return None

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


def few_domains(concept: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the fewest domains of train and test by concept, if its definition asks for more; else nothing."""
    fewest = min(len({row["domain"] for row in rows if row["split"] == split}) for split in ("train", "test"))
    return {concept: fewest} if fewest < CONCEPTS.get(concept).min_source_domains else {}


def _stem(candidate: Candidate) -> str:
    return f"{candidate.document.doc_id.replace('/', '.')}.{candidate.number:03d}"


def round_robin(iterators: Mapping[str, Iterator[T]]) -> Iterator[T]:
    """Yield one item of each iterator in turn, exhausted ones left out."""
    alive = dict(iterators)
    while alive:
        for name in list(alive):
            item = next(alive[name], None)
            if item is None:
                del alive[name]
            else:
                yield item
