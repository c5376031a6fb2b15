"""Real corpora with weak labels as PASSAGES tables."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
from recipes.passages.documents import Document, read_documents
from recipes.passages.rewriting import REWRITERS_REVISION, REWRITES
from recipes.passages.selection import Candidate, Selection, round_robin
from recipes.passages.weak_labels import Pool, weak_labels
from recipes.passages.yields import Yield

from poolbench.concepts import CONCEPTS
from poolbench.errors import CorpusError
from poolbench.texts import count_words
from poolbench_corpora.near import TokenCounter
from poolbench_corpora.partition import Split, split_of

REAL_REVISION = "real-2"
"""Changes whenever a reader, a rule or the selection changes; the rewriters have a revision of their own."""


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
    found: Yield | None = None,
) -> pa.Table:
    """Build a corpus of one concept from real text; half of each split is positive.

    Args:
        archives: Folder of the archives; by default the environment variable `POOLBENCH_REAL_TEXT`.
        num_train: Passages of both classes together; likewise `num_test` and `num_scorer`. Even numbers.
        window: Smallest and largest number of tokens of a passage; the concept's own by default.
        seed: Other seeds choose other passages.
        count_tokens: Measures the window; words and punctuation by default.
        found: Counts what each rule drops.

    Raises:
        CorpusError: The archives cannot serve the concept; an odd number of passages, or more than they hold.
    """
    rules = weak_labels()
    if concept not in rules:
        raise CorpusError(f"the archives have no texts of {concept}; they serve {', '.join(sorted(rules))}")
    length = window or CONCEPTS.get(concept).token_window
    tally = found if found is not None else Yield(quoting=False)
    selection = ArchiveSelection(concept, rules[concept], length, seed, count_tokens, tally, archives)
    return selection.table({"train": num_train, "test": num_test, "scorer": num_scorer})


@dataclass
class ArchiveSelection(Selection):
    """Chooses from the archives, whose documents are all in memory."""

    archives: str | Path | None

    revision = REAL_REVISION
    origin = "the archives"

    def by_domain(self, pool: Pool, split: Split) -> dict[str, Iterator[Candidate]]:
        """Return the candidates of a pool per domain; documents in turn, so that none dominates."""
        documents: dict[str, list[Document]] = {}
        for source in pool.sources:
            for document in read_documents(source, self.archives):
                if split_of(document.doc_id) != split:
                    continue
                self.tally.read(source)
                if pool.document(document):
                    documents.setdefault(document.domain, []).append(document)
                else:
                    self.tally.drop("label", document.text)
        return {domain: self._turns(documents[domain], pool, split) for domain in sorted(documents)}

    def _turns(self, documents: list[Document], pool: Pool, split: Split) -> Iterator[Candidate]:
        rng = Random(f"{REAL_REVISION}:{self.concept}:{split}:{self.seed}")
        rng.shuffle(documents)
        return round_robin({document.doc_id: self.candidates(document, pool) for document in documents})
