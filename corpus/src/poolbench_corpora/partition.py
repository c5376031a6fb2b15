"""One partition of documents for everything.

The demo language model, the annotation pipeline, the scorers and the concept corpora all call `split_of`, so a text
that trained one of them is never used to judge it. The split is a hash of the document's id with shares declared per
source; nothing is stored and nothing depends on order.

A document id is `<source>/<document>`, optionally followed by `/<part>`: parts follow their document, so
`novels/dickens/ch-3` is in the same split as every other text by Dickens.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from poolbench.errors import CorpusError, unknown_name_message

PARTITION_VERSION = 1
"""Changes whenever a share or the hash changes; written into every corpus manifest."""

Split = Literal["lm", "annotator", "scorer", "train", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_BUCKETS = 10_000


@dataclass(frozen=True)
class Shares:
    """Parts in 10,000 of a source's documents that go to each split."""

    lm: int = 0
    annotator: int = 0
    scorer: int = 0
    train: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        parts = [getattr(self, split) for split in SPLITS]
        if min(parts) < 0 or sum(parts) != _BUCKETS:
            raise ValueError(f"shares must be non-negative and sum to {_BUCKETS}; received {parts}")


# Text under a permissive licence may train the demo language model.
_OPEN = Shares(lm=3500, scorer=2000, train=3000, test=1500)
# Share-alike or doubtful text builds and tests corpora, but never a model that we ship.
_CLOSED = Shares(scorer=2000, train=5500, test=2500)
# Few authors and a language model that needs prose: half of them are for the model.
_NOVELS = Shares(lm=5000, scorer=1500, train=2000, test=1500)
# Treebanks keep their official train, dev and test documents inside this one split; the concept corpora
# never see them, so the annotator is never applied to a sentence that it was trained on.
_TREEBANK = Shares(annotator=10_000)

HUB = "hf-"
"""What the sources begin with that are datasets of a hub."""
_DATASETS = (
    "arxiv", "pubmedqa", "scotus", "eurlex", "billsum", "billsum_summaries", "cc_news", "reddit", "yelp", "metamath",
    "numinamath", "code_python", "code_java", "code_javascript", "code_ruby", "imdb", "hate_speech", "civil_comments",
    "surge_toxicity", "depression_reddit", "mentalreddit", "polite_guard", "wikihow", "writingprompts", "wikipedia",
    "scicite",
)  # fmt: skip

SOURCE_SHARES: Mapping[str, Shares] = MappingProxyType(
    {
        "ud_english_ewt": _TREEBANK,
        "gum": _TREEBANK,
        "uner": _TREEBANK,
        "wikigold": _TREEBANK,
        "wnut17": _TREEBANK,
        "broad_twitter": _TREEBANK,
        "sec_filings": _TREEBANK,
        "novels": _NOVELS,
        "cfpb_complaints": _OPEN,
        "cfpb_regulations": _OPEN,
        "craft_articles": _OPEN,
        "dc_code": _OPEN,
        "django_docs": _OPEN,
        "factbook": _OPEN,
        "inaugural": _OPEN,
        "keps": _OPEN,
        "masc": _OPEN,
        "peps": _OPEN,
        "python_docs": _OPEN,
        "state_union": _OPEN,
        "debian_handbook": _CLOSED,
        "freedombox_manual": _CLOSED,
        "goemotions": _CLOSED,
        "movie_reviews": _CLOSED,
        "politeness": _CLOSED,
        "wikitext2_test": _CLOSED,
        **{HUB + name: _CLOSED for name in _DATASETS},
        "planted-corpus": Shares(train=7000, test=3000),
        "planted-lm": Shares(lm=10_000),
        "planted-scorer": Shares(scorer=10_000),
    }
)


def source_of(doc_id: str) -> str:
    """Return the source of a document id. Raise CorpusError if it has no source or no document part."""
    source, _, document = doc_id.partition("/")
    if not source or not document:
        raise CorpusError(
            f"document id {doc_id!r} is not of the form '<source>/<document>'; "
            "prefix it with the name of the source that it comes from"
        )
    return source


def document_of(doc_id: str) -> str:
    """Return the id up to its document: `novels/dickens/ch-3` gives `novels/dickens`."""
    source_of(doc_id)
    return "/".join(doc_id.split("/")[:2])


def shares_of(source: str) -> Shares:
    """Return the declared shares of a source. Raise CorpusError if there are none."""
    if source not in SOURCE_SHARES:
        raise CorpusError(
            f"{unknown_name_message('source', source, SOURCE_SHARES)}; shares of a new source are declared "
            "in poolbench_corpora.partition"
        )
    return SOURCE_SHARES[source]


def bucket_of(doc_id: str) -> int:
    """Return a number in [0, 10,000) that depends on the document and the partition version only."""
    digest = hashlib.sha256(f"{PARTITION_VERSION}:{document_of(doc_id)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _BUCKETS


def split_of(doc_id: str) -> Split:
    """Return the split that a document belongs to, the same on every machine and in every run.

    Raise CorpusError if the id is malformed or its source has no declared shares.
    """
    declared = shares_of(source_of(doc_id))
    bucket = bucket_of(doc_id)
    for split in SPLITS:
        bucket -= getattr(declared, split)
        if bucket < 0:
            return split
    raise AssertionError("shares sum to the number of buckets")
