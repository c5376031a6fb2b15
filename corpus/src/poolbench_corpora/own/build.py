"""From settings and files of a user to PASSAGES and a concept: pairs, documents, splits, and what is to be said."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.cancellation import check_cancelled
from poolbench.concepts import CONCEPTS, Concept, Neighbours
from poolbench.config import ConceptSettings
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import ConfigError, CorpusError
from poolbench.grouping import grouped
from poolbench.statistics.folds import connected_groups
from poolbench.texts import count_words, words_of
from poolbench_corpora.near import infer_documents
from poolbench_corpora.own.files import Text, read_pairs, read_texts
from poolbench_corpora.own.review import Remark, review
from poolbench_corpora.reading import TextFile

#: Shares of the passages that each split gets.
SHARES: Mapping[str, float] = {"train": 0.5, "test": 0.25, "scorer": 0.25}
#: What a user's passages name as their source if the file names none.
DEFAULT_SOURCE = "own"


@dataclass(frozen=True)
class OwnTexts:
    """The texts of one concept from a user."""

    positives: Sequence[Text] = ()
    negatives: Sequence[Text] = ()
    pairs: Sequence[tuple[Text, Text]] = ()
    licence: str = ""  # of texts that name none
    repeated: list[str] = field(default_factory=list)  # places of the texts that `build_own` left out


def build_own(concept: str, texts: OwnTexts, *, seed: int = 0) -> pa.Table:
    """Return the PASSAGES table of one concept, in the order of the files.

    If the files name splits, these are used. Otherwise, passages are split by document. A text that occurs twice in a
    class is used once. Texts of one document, and both members of a pair, are in one split. Documents that the files do
    not name are inferred from shared 8-grams. Random draws depend on the ids of passages and pairs. The ids do not
    contain the concept's name, so another name of the concept does not change the results.

    Raises:
        CorpusError: A class is empty, or a text is both positive and negative.
    """
    rows = [*_rows(concept, texts)]
    table = infer_documents(pa.Table.from_pylist(_without_repeats(rows, texts.repeated), schema=PASSAGES))
    labels = set(table["label"].to_pylist())
    if labels != {0, 1}:
        missing = "negatives" if 0 not in labels else "positives"
        raise CorpusError(f"concept {concept} has no {missing}; give a file of them, or pairs")
    splits = _given_splits(concept, rows, table) or _splits(table, seed)
    return table.set_column(table.schema.get_field_index("split"), "split", pa.array(splits, pa.string()))


def _given_splits(concept: str, rows: Sequence[dict[str, Any]], table: pa.Table) -> list[str]:
    """Return the splits that the files name; none where they name none. Raise CorpusError for some without."""
    split_by_id = {row["passage_id"]: row["split"] for row in rows}
    if not any(split_by_id.values()):
        return []
    if missing := next((row["where"] for row in rows if not row["split"]), None):
        raise CorpusError(f"{missing} names no split, and other records of {concept} do; name it in all or in none")
    return [split_by_id[name] for name in table["passage_id"].to_pylist()]


def revision_of(passages: pa.Table) -> str:
    """Return a hash of all columns of PASSAGES: the name of this state of a user's corpus."""
    total = hashlib.sha256()
    for row in passages.to_pylist():
        total.update(repr(sorted(row.items())).encode() + b"\0")
    return total.hexdigest()[:16]


def _rows(concept: str, texts: OwnTexts) -> Iterable[dict[str, Any]]:
    single = [(text, 1, None) for text in texts.positives] + [(text, 0, None) for text in texts.negatives]
    paired = [
        (text, label, f"pair-{number}")
        for number, pair in enumerate(texts.pairs)
        for text, label in zip(pair, (1, 0), strict=True)
    ]
    seen: Counter[str] = Counter()
    for number, (text, label, pair_id) in enumerate([*single, *paired]):
        name = text.id and f"{text.id}-{'pos' if label else 'neg'}" if pair_id else text.id
        name = name or f"text-{number}"
        seen[name] += 1
        source = text.source or DEFAULT_SOURCE
        yield {
            "passage_id": name if seen[name] == 1 else f"{name}-{seen[name]}",
            "concept": concept,
            "split": text.split,
            "label": label,
            "text": text.text,
            "domain": text.domain,
            "doc_id": f"{source}/{text.document}" if text.document else None,
            "pair_id": pair_id,
            "source": source,
            "licence": text.licence or texts.licence,
            "token_count": count_words(text.text),
            "signal": [],
            "where": text.where,
        }


def _without_repeats(rows: Sequence[dict[str, Any]], repeated: list[str]) -> list[dict[str, Any]]:
    """Return the rows without texts that their class already has, together with their pairs; fill `repeated`."""
    first: dict[str, dict[str, Any]] = {}
    dropped_pairs, unique_rows = set(), []
    for row in rows:
        other = first.setdefault(" ".join(words_of(row["text"])), row)
        if other["label"] != row["label"]:
            raise CorpusError(
                f"{row['where']} and {other['where']} have the same text, one as a positive and one as a negative; "
                "remove one of them"
            )
        if other is not row:
            repeated.append(row["where"])
            dropped_pairs.add(row["pair_id"])
        else:
            unique_rows.append(row)
    whole = [row for row in unique_rows if row["pair_id"] is None or row["pair_id"] not in dropped_pairs]
    return [{name: value for name, value in row.items() if name != "where"} for row in whole]


def _splits(table: pa.Table, seed: int) -> list[str]:
    """Return the split of each passage. Groups of documents and pairs go, largest first, where most is missing."""
    labels = np.array(table["label"].to_pylist())
    groups = connected_groups(table["doc_id"].to_pylist(), table["pair_id"].to_pylist())
    members = grouped((group, row) for row, group in enumerate(groups.tolist()))
    names = table["passage_id"].to_pylist()
    mixed = {group: hashlib.sha256(f"{seed}:{names[rows[0]]}".encode()).hexdigest() for group, rows in members.items()}
    order = sorted(members, key=lambda group: (-len(members[group]), mixed[group]))
    totals = np.array([(labels == label).sum() for label in (0, 1)])
    targets = {split: share * totals for split, share in SHARES.items()}
    have = {split: np.zeros(2) for split in SHARES}
    splits = [""] * len(names)
    for group in order:
        counts = np.bincount(labels[members[group]], minlength=2)
        best = max(SHARES, key=lambda split: _need(targets[split] - have[split], counts, totals))
        have[best] += counts
        for row in members[group]:
            splits[row] = best
    return splits


def _need(missing: np.ndarray, counts: np.ndarray, totals: np.ndarray) -> float:
    """Return the share of each class that a split still misses, over the classes of the group, in the mean."""
    present = counts > 0
    return float((missing[present] / totals[present]).mean())


@dataclass(frozen=True)
class TextFiles:
    """The files of one concept, on disk or in a request."""

    positives: TextFile | None = None
    negatives: TextFile | None = None
    pairs: TextFile | None = None


@dataclass(frozen=True)
class Made:
    """A concept that is ready to be registered."""

    concept: Concept
    passages: pa.Table  # PASSAGES
    remarks: Sequence[Remark]

    @property
    def usable(self) -> bool:
        """Return whether anything can be measured with it."""
        return all(remark.level != "error" for remark in self.remarks)

    def sizes(self) -> list[dict[str, object]]:
        """Return the number of passages and documents by split and class."""
        rows = self.passages.select(["split", "label", "doc_id"]).to_pylist()
        size_rows: list[dict[str, object]] = []
        for split in ("train", "test", "scorer"):
            split_rows = [row for row in rows if row["split"] == split]
            positives = sum(row["label"] for row in split_rows)
            size_rows.append(
                {
                    "split": split,
                    "positives": positives,
                    "negatives": len(split_rows) - positives,
                    "documents": len({row["doc_id"] for row in split_rows}),
                }
            )
        return size_rows


def make_concept(settings: ConceptSettings, files: TextFiles) -> Made:
    """Read the files of a concept, split and check them.

    Raises:
        ConfigError: A neighbour does not exist, or no texts are named.
        CorpusError: A file is malformed; the message names file and line.
    """
    names = settings.neighbours
    if settings.id in names or len(set(names)) < len(names):
        raise ConfigError(f"neighbours {', '.join(names)}: name two different concepts, other than {settings.id}")
    neighbours = Neighbours(*(CONCEPTS.get(name).id for name in names))
    texts = _texts(settings, files)
    check_cancelled()  # a request whose client has left ends between two steps
    passages = build_own(settings.id, texts, seed=settings.seed)
    check_cancelled()
    counts = passages["token_count"].to_pylist()
    concept = Concept(
        id=settings.id,
        family="own",
        summary=settings.definition.partition(". ")[0] or f"Concept {settings.id} of the user.",
        definition=settings.definition,
        construction="Passages of the user.",
        matched_pairs=passages["pair_id"].null_count == 0,
        neighbours=neighbours,
        seed_words=settings.seed_words,
        triggers=settings.triggers,
        sensitive=settings.sensitive,
        token_window=(min(counts), max(counts)),
        min_source_domains=1,
        corpus=revision_of(passages),
    )
    remarks = review(concept, passages)
    if again := texts.repeated:
        remarks.append(Remark("warning", f"{len(again)} repeated texts are left out, such as {again[0]}"))
    return Made(concept, passages, remarks)


def _texts(settings: ConceptSettings, files: TextFiles) -> OwnTexts:
    positives, negatives = (read_texts(file) if file else [] for file in (files.positives, files.negatives))
    pairs = read_pairs(files.pairs) if files.pairs else []
    if not (positives or pairs):
        raise ConfigError(f"concept {settings.id} names no texts; give positives and negatives, or pairs")
    return OwnTexts(positives, negatives, pairs, settings.licence)
