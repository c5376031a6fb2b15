"""The construction rules of concept corpora: counts, pairs, documents, provenance, and the texts themselves.

Findings name passages by id and never quote them: passages of sensitive concepts must not be shown.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench.texts import words_of
from poolbench.word_rules import MIN_NEGATORS, MIN_NUMBERS, NEGATORS, NUMBER, VAGUE, seed_pattern
from poolbench_corpora.near import MAX_PAIR_DIFFERENCE, NEAR_DUPLICATE, token_difference
from poolbench_corpora.near import near_duplicates as near_duplicates_of
from poolbench_corpora.partition import SOURCE_SHARES, split_of


@dataclass(frozen=True)
class Finding:
    """A broken rule, with the ids of at most five passages that break it."""

    concept: str
    rule: str
    message: str
    passages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """The passages of one concept, with the bounds that the checks use."""

    concept: Concept
    window: tuple[int, int]
    min_domains: int
    rows: tuple[Row, ...]

    def where(self, **values: Any) -> list[Row]:
        """Return the rows whose columns have the given values."""
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]

    def pairs(self) -> dict[str, list[Row]]:
        """Return the rows by pair id."""
        return grouped((row["pair_id"], row) for row in self.rows if row["pair_id"] is not None)

    def finding(self, rule: str, message: str, rows: Iterable[Row] = ()) -> Finding:
        """Return a finding about some rows."""
        return Finding(self.concept.id, rule, message, tuple(row["passage_id"] for row in rows)[:5])


Check = Callable[[Corpus], Iterator[Finding]]
CHECKS: dict[str, Check] = {}


def rule(check: Check) -> Check:
    """Register a check under the name of its function. Return the check."""
    CHECKS[check.__name__] = check
    return check


@rule
def pair_difference(corpus: Corpus) -> Iterator[Finding]:
    """Check that members of a pair differ by few tokens."""
    for pair_id, rows in corpus.pairs().items():
        difference = token_difference(rows[0]["text"], rows[-1]["text"])
        if difference > MAX_PAIR_DIFFERENCE:
            message = f"pair {pair_id} differs by {difference} tokens; at most {MAX_PAIR_DIFFERENCE} may"
            yield corpus.finding("pair_difference", message, rows)


@rule
def duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Check that no text occurs twice, within a class, across classes or across splits."""
    by_text = grouped((" ".join(words_of(row["text"])), row) for row in corpus.rows)
    for rows in by_text.values():
        if len(rows) > 1:
            yield corpus.finding("duplicates", f"{len(rows)} passages have the same text", rows)


@rule
def near_duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Check that no two passages share many 8-grams, members of a pair excepted."""
    pairs, shares = near_duplicates_of([row["text"] for row in corpus.rows])
    for (first, second), share in zip(pairs.tolist(), shares.tolist(), strict=True):
        rows = corpus.rows[first], corpus.rows[second]
        if not _are_a_pair(*rows):
            message = f"{share:.0%} of the 8-grams of one are in the other; under {NEAR_DUPLICATE:.0%} may be"
            yield corpus.finding("near_duplicates", message, rows)


@rule
def seed_words(corpus: Corpus) -> Iterator[Finding]:
    """Check that negatives are free of the concept's seed words, matched at word boundaries."""
    if not corpus.concept.seed_words:
        return
    pattern = seed_pattern(corpus.concept)
    tainted = [row for row in corpus.where(label=0) if pattern.search(row["text"])]
    if tainted:
        yield corpus.finding("seed_words", f"{len(tainted)} negatives contain a seed word", tainted)


@rule
def negators(corpus: Corpus) -> Iterator[Finding]:
    """Check negation_density: at least 3 negators in positives, none in negatives."""
    if corpus.concept.id == "negation_density":
        low = [row for row in _marked_positives(corpus) if _count(NEGATORS, row) < MIN_NEGATORS]
        if low:
            message = f"{len(low)} positives have fewer than {MIN_NEGATORS} negators"
            yield corpus.finding("negators", message, low)
        high = [row for row in corpus.where(label=0) if _count(NEGATORS, row)]
        if high:
            yield corpus.finding("negators", f"{len(high)} negatives contain negators", high)


def _marked_positives(corpus: Corpus) -> list[Row]:
    """Return the positives without the planted ones that are mislabelled on purpose, which have no signal."""
    return [row for row in corpus.where(label=1) if row["signal"] or not row["source"].startswith("planted")]


@rule
def numbers(corpus: Corpus) -> Iterator[Finding]:
    """Check numerical_precision: 4 numbers in positives; none and a vague quantifier in negatives."""
    if corpus.concept.id == "numerical_precision":
        low = [row for row in _marked_positives(corpus) if _count(NUMBER, row) < MIN_NUMBERS]
        if low:
            yield corpus.finding("numbers", f"{len(low)} positives have fewer than {MIN_NUMBERS} numbers", low)
        high = [row for row in corpus.where(label=0) if _count(NUMBER, row) or not _count(VAGUE, row)]
        if high:
            message = f"{len(high)} negatives have numbers or lack a vague quantifier"
            yield corpus.finding("numbers", message, high)


def _are_a_pair(first: Row, second: Row) -> bool:
    return first["pair_id"] is not None and first["pair_id"] == second["pair_id"]


def _count(pattern: re.Pattern[str], row: Row) -> int:
    return len(pattern.findall(row["text"]))


@rule
def balance(corpus: Corpus) -> Iterator[Finding]:
    """Check that each split has as many positives as negatives, and that train and test are present."""
    for split in ("train", "test", "scorer"):
        positives, negatives = (len(corpus.where(split=split, label=label)) for label in (1, 0))
        if positives != negatives:
            message = f"{split} has {positives} positives and {negatives} negatives; both must be equal"
            yield corpus.finding("balance", message)
        elif not positives and split != "scorer":
            yield corpus.finding("balance", f"{split} has no passages; a corpus needs train and test")


@rule
def token_window(corpus: Corpus) -> Iterator[Finding]:
    """Check that every passage has a token count within the window."""
    low, high = corpus.window
    outside = [row for row in corpus.rows if not low <= (row["token_count"] or 0) <= high]
    if outside:
        message = f"{len(outside)} passages lie outside the window of {low}-{high} tokens"
        yield corpus.finding("token_window", message, outside)


@rule
def source_domains(corpus: Corpus) -> Iterator[Finding]:
    """Check that train and test each come from enough domains."""
    needed = corpus.min_domains
    for split in ("train", "test"):
        domains = {row["domain"] for row in corpus.where(split=split)}
        if len(domains) < needed:
            message = f"{split} has {len(domains)} domains ({', '.join(sorted(domains))}); {needed} are needed"
            yield corpus.finding("source_domains", message)


@rule
def pair_members(corpus: Corpus) -> Iterator[Finding]:
    """Check that each positive of a matched concept is paired with one negative of the same split."""
    unpaired = [row for row in corpus.rows if (row["pair_id"] is None) == corpus.concept.matched_pairs]
    if unpaired:
        expected = "a pair id on every passage" if corpus.concept.matched_pairs else "no pair ids"
        yield corpus.finding("pair_members", f"{len(unpaired)} passages break: {expected}", unpaired)
    for pair_id, rows in corpus.pairs().items():
        if sorted(row["label"] for row in rows) != [0, 1]:
            yield corpus.finding("pair_members", f"pair {pair_id} is not one positive and one negative", rows)
        if len({row["split"] for row in rows}) > 1:
            yield corpus.finding("pair_members", f"pair {pair_id} lies in more than one split", rows)


@rule
def one_split_per_document(corpus: Corpus) -> Iterator[Finding]:
    """Check that a source document lies in one split only."""
    for doc_id, rows in grouped((row["doc_id"], row) for row in corpus.rows).items():
        splits = sorted({row["split"] for row in rows})
        if len(splits) > 1:
            yield corpus.finding("one_split_per_document", f"document {doc_id} lies in {', '.join(splits)}", rows)


@rule
def partition(corpus: Corpus) -> Iterator[Finding]:
    """Check that documents of known sources lie in the split that the partition gives them."""
    rows = (row for row in corpus.rows if (row["doc_id"] or "").partition("/")[0] in SOURCE_SHARES)
    misplaced = [row for row in rows if split_of(row["doc_id"]) != row["split"]]
    if misplaced:
        message = f"{len(misplaced)} passages lie in another split than the partition gives their document"
        yield corpus.finding("partition", message, misplaced)


@rule
def licences(corpus: Corpus) -> Iterator[Finding]:
    """Check that every passage names its source and licence."""
    nameless = [row for row in corpus.rows if not (row["source"] and row["licence"])]
    if nameless:
        message = f"{len(nameless)} passages lack a source or licence"
        yield corpus.finding("licences", message, nameless)


def validate_corpus(
    passages: pa.Table, *, window: tuple[int, int] | None = None, min_domains: Mapping[str, int] | None = None
) -> list[Finding]:
    """Check a corpus by all rules. Return the findings, an empty list for a valid corpus.

    Args:
        window: Smallest and largest number of tokens. The default is the window of each concept.
        min_domains: Smallest number of domains in a split, for each concept whose corpus has another bound than the
            concept.
    """
    findings: list[Finding] = []
    for name, rows in grouped((row["concept"], row) for row in passages.to_pylist()).items():
        concept = CONCEPTS.get(name)
        domains = (min_domains or {}).get(name, concept.min_source_domains)
        corpus = Corpus(concept, window or concept.token_window, domains, tuple(rows))
        for check in CHECKS.values():
            findings += check(corpus)
    return findings
