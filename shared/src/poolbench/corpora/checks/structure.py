"""Rules about numbers, pairs, documents and provenance."""

from collections.abc import Iterator

from poolbench.corpora.checks.base import Corpus, Finding, grouped, rule
from poolbench.corpora.partition import SOURCE_SHARES, split_of


@rule
def balance(corpus: Corpus) -> Iterator[Finding]:
    """Each split has as many positives as negatives, and train and test are there."""
    for split in ("train", "test", "scorer"):
        positives, negatives = (len(corpus.where(split=split, label=label)) for label in (1, 0))
        if positives != negatives:
            message = f"{split} has {positives} positives and {negatives} negatives; both must be equal"
            yield corpus.finding("balance", message)
        elif not positives and split != "scorer":
            yield corpus.finding("balance", f"{split} has no passages; a corpus needs train and test")


@rule
def token_window(corpus: Corpus) -> Iterator[Finding]:
    """Every passage has a token count within the window."""
    low, high = corpus.window
    outside = [row for row in corpus.rows if not low <= (row["token_count"] or 0) <= high]
    if outside:
        message = f"{len(outside)} passages lie outside the window of {low}-{high} tokens"
        yield corpus.finding("token_window", message, outside)


@rule
def source_domains(corpus: Corpus) -> Iterator[Finding]:
    """Train and test each come from enough domains."""
    needed = corpus.concept.min_source_domains
    for split in ("train", "test"):
        domains = {row["domain"] for row in corpus.where(split=split)}
        if len(domains) < needed:
            message = f"{split} has {len(domains)} domains ({', '.join(sorted(domains))}); {needed} are needed"
            yield corpus.finding("source_domains", message)


@rule
def pair_members(corpus: Corpus) -> Iterator[Finding]:
    """A matched concept pairs each positive with one negative of the same split; others have no pairs."""
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
    """A source document lies in one split only."""
    for doc_id, rows in grouped(corpus.rows, "doc_id").items():
        splits = sorted({row["split"] for row in rows})
        if len(splits) > 1:
            yield corpus.finding("one_split_per_document", f"document {doc_id} lies in {', '.join(splits)}", rows)


@rule
def partition(corpus: Corpus) -> Iterator[Finding]:
    """Documents of known sources lie in the split that the partition gives them."""
    known = (row for row in corpus.rows if (row["doc_id"] or "").partition("/")[0] in SOURCE_SHARES)
    misplaced = [row for row in known if split_of(row["doc_id"]) != row["split"]]
    if misplaced:
        message = f"{len(misplaced)} passages lie in another split than the partition gives their document"
        yield corpus.finding("partition", message, misplaced)


@rule
def licences(corpus: Corpus) -> Iterator[Finding]:
    """Every passage names its source and licence."""
    nameless = [row for row in corpus.rows if not (row["source"] and row["licence"])]
    if nameless:
        message = f"{len(nameless)} passages lack a source or licence"
        yield corpus.finding("licences", message, nameless)
