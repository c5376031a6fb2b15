"""From settings and files to a concept with passages, and what is to be said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from poolbench.cancellation import check_cancelled
from poolbench.concepts import CONCEPTS, Concept, Neighbours
from poolbench.config import ConceptSettings
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.own.build import OwnTexts, build_own, revision_of
from poolbench_corpora.own.files import Text, read_pairs, read_texts
from poolbench_corpora.own.review import Remark, review
from poolbench_corpora.reading import TextFile
from poolbench_corpora.real.rewriting import REWRITES


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
        ConfigError: A neighbour or rewriter does not exist, or no texts are named.
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
    if settings.rewriter:
        if negatives:
            raise ConfigError("a rewriter makes the negatives; give either `rewriter` or `negatives`")
        pairs, positives = [*pairs, *_rewritten(settings.rewriter, positives)], []
    return OwnTexts(positives, negatives, pairs, settings.licence)


def _rewritten(name: str, positives: Sequence[Text]) -> list[tuple[Text, Text]]:
    """Return each positive with its rewrite. Raise CorpusError where the rewriter changes nothing or declines."""
    if name not in REWRITES:
        raise UnknownNameError("rewriter", name, REWRITES)
    pairs: list[tuple[Text, Text]] = []
    declined: list[str] = []
    unchanged: list[str] = []
    for text in positives:
        negative = REWRITES[name](text.text)
        if negative is None:
            declined.append(text.where)
        elif negative == text.text:
            unchanged.append(text.where)
        else:
            pairs.append((text, replace(text, text=negative)))
    faults = {"finds nothing to delete in it": unchanged, "cannot rewrite it without damage to a sentence": declined}
    for fault, places in faults.items():
        if places:
            raise CorpusError(
                f"{places[0]}: rewriter {name} {fault} ({len(places) - 1} more texts have the same fault); "
                "remove these positives or write their negatives yourself"
            )
    return pairs
