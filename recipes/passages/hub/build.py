"""Corpora from datasets of a hub, streamed: only the passages that may be chosen are kept in memory."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
from recipes.passages.documents import Document
from recipes.passages.hub.catalog import Recipe, datasets, get_recipe, labels_of, recipes
from recipes.passages.hub.documents import Reader, documents_of
from recipes.passages.selection import Candidate, Selection, round_robin
from recipes.passages.weak_labels import Pool
from recipes.passages.yields import Yield

from poolbench.concepts import CONCEPTS
from poolbench.errors import CorpusError
from poolbench_corpora.near import TokenCounter
from poolbench_corpora.partition import SPLITS, Split, split_of

HUB_REVISION = "hub-1"
"""Changes whenever a source, a rule or the selection changes."""

READ_LIMIT = 300_000
"""Records of one dataset that are read at most for one class."""
MAX_PER_DOCUMENT = 2
"""Passages of one document, so that a long one does not dominate."""
SPARE = 4
"""Passages that wait for a split, as a multiple of those that it needs: some are near-duplicates."""


def build_hub(
    concept: str,
    reader: Reader,
    *,
    num_train: int,
    num_test: int,
    num_scorer: int,
    count_tokens: TokenCounter,
    window: tuple[int, int] | None = None,
    seed: int = 0,
    leave_out: frozenset[str] = frozenset(),
    unknown_licences: bool = False,
    read_limit: int = READ_LIMIT,
    found: Yield | None = None,
) -> pa.Table:
    """Build a corpus of one concept from its datasets; half of each split is positive.

    Args:
        reader: Where the datasets are read (`recipes.passages.hub.reader_of`).
        num_train: Passages of both classes together; likewise `num_test` and `num_scorer`. Even numbers.
        window: Smallest and largest number of tokens of a passage; the concept's own by default.
        seed: Other seeds choose other passages.
        leave_out: Datasets that are not read.
        unknown_licences: Whether datasets are read whose publisher declares no licence.
        found: Counts what each rule drops.

    Raises:
        CorpusError: No recipe, an unknown licence, a dataset that cannot be read, or too few passages.
    """
    if concept not in recipes():
        raise CorpusError(f"{concept} names no datasets; those that do are {', '.join(sorted(recipes()))}")
    recipe = get_recipe(concept, leave_out)
    _require(concept, recipe, unknown_licences=unknown_licences)
    sizes: dict[Split, int] = {"train": num_train, "test": num_test, "scorer": num_scorer}
    length = window or CONCEPTS.get(concept).token_window
    tally = found if found is not None else Yield(quoting=False)
    labels = labels_of(concept, recipe)
    return _FromHub(concept, labels, length, seed, count_tokens, tally, reader, recipe, sizes, read_limit).table(sizes)


def _require(concept: str, recipe: Recipe, *, unknown_licences: bool) -> None:
    for side, name in zip(recipe.sides, ("positives", "negatives"), strict=False):
        if not side.domains:
            raise CorpusError(f"{concept}: --without leaves no dataset for its {name}")
    nameless = sorted({datasets()[name].id for name in recipe.datasets() if datasets()[name].licence is None})
    if nameless and not unknown_licences:
        raise CorpusError(
            f"no licence is known of {', '.join(nameless)}: --unknown-licences uses such datasets, "
            f"--without {','.join(nameless)} leaves them out"
        )


@dataclass
class _FromHub(Selection):
    """Chooses from streams: each dataset is read once per class, and its passages wait for their split."""

    reader: Reader
    recipe: Recipe
    sizes: Mapping[Split, int]
    read_limit: int
    streams: dict[tuple[int, str], "_Stream"] = field(default_factory=dict, init=False)

    revision = HUB_REVISION
    origin = "the datasets"

    def by_domain(self, pool: Pool, split: Split) -> dict[str, Iterator[Candidate]]:
        """Return the candidates of a pool per domain; datasets of one domain in turn."""
        positive = pool is self.labels.positives
        side = self.recipe.positives if positive or self.recipe.negatives is None else self.recipe.negatives
        domains: dict[str, dict[str, Iterator[Candidate]]] = {}
        for name, domain in side.domains.items():
            if (positive, name) not in self.streams:
                columns = tuple(side.where.get(name, {}))
                dataset = datasets()[name]
                records = islice(self.reader(dataset, self.seed), self.read_limit)
                documents = documents_of(name, dataset, domain, columns, records, self.tally)
                rooms = {split: SPARE * (number // 2) for split, number in self.sizes.items()}
                self.streams[positive, name] = _Stream(
                    documents, rooms, lambda document: self._passages(document, pool), self.tally
                )
            domains.setdefault(domain, {})[name] = self.streams[positive, name].of(split)
        return {domain: round_robin(streams) for domain, streams in domains.items()}

    def _passages(self, document: Document, pool: Pool) -> Iterator[Candidate]:
        if pool.document(document):
            return islice(self.candidates(document, pool), MAX_PER_DOCUMENT)
        self.tally.drop("label", document.text)
        return iter(())


class _Stream:
    """The passages of one dataset, dealt out by split in one pass.

    Args:
        rooms: How many passages of each split may wait; the documents of a split that is full are skipped.
    """

    def __init__(
        self,
        documents: Iterator[Document],
        rooms: Mapping[Split, int],
        passages: Callable[[Document], Iterator[Candidate]],
        found: Yield,
    ) -> None:
        self._documents, self._rooms, self._passages, self._found = documents, rooms, passages, found
        self._waiting: dict[Split, deque[Candidate]] = {split: deque() for split in SPLITS}

    def of(self, split: Split) -> Iterator[Candidate]:
        """Yield the passages of one split, reading on as far as needed."""
        while True:
            while self._waiting[split]:
                yield self._waiting[split].popleft()
            document = next(self._documents, None)
            if document is None:
                return
            target = split_of(document.doc_id)
            if len(self._waiting[target]) < self._rooms.get(target, 0):
                self._waiting[target].extend(self._passages(document))
            else:
                self._found.drop("surplus", document.text)
